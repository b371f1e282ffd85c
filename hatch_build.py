"""The wheel carries POET's searches compiled: whoever installs it needs no compiler.

Each `csrc/*.c` becomes a library beside its source, compiled as poet/native.py would on first use
and found there by a name that only the same source and flags have. Such a wheel is for one platform
but any Python 3, since the libraries know nothing of Python. Where no compiler is found the wheel
is a pure one, and its searches are built on first use. So are those of a checkout, always.
"""

import importlib.util
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledSearches(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sources = Path(self.root, "src")
        native = _native(sources)
        self._folder = TemporaryDirectory()
        carried = {}
        for source in sorted(sources.glob("poet/**/csrc/*.c")):
            place = native.carried(source)
            library = Path(self._folder.name, place.name)
            if not native.compile_for_wheel(source, library):
                self.app.display_warning(
                    f"no C compiler among {', '.join(native.COMPILERS)} could build {source.name}: "
                    "this is a pure wheel, and POET builds its searches on first use"
                )
                return
            carried[str(library)] = str(place.relative_to(sources))
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data.update(pure_python=False, tag=f"py3-none-{platform}")
        build_data["force_include"].update(carried)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def _native(sources: Path) -> Any:
    """poet.native by its file: importing the package would ask for its dependencies."""
    spec = importlib.util.spec_from_file_location("native", sources / "poet" / "native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
