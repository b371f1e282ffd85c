"""Guard: what a mutant must not do, watched by Python itself (`sys.addaudithook`).

No process, no socket, no pickle, no code but what POET writes for a step, no module that nobody
asked for, nothing written outside of a folder. Limits of memory and processor time are the
kernel's: whoever passes the latter ends the process, which its parent notices. So does whoever
waits for long; that limit is far off, since others may be at work on the same machine.
"""

import faulthandler
import os
import resource
import signal
import sys
import sysconfig
import time
import types
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 10
WAIT_SECONDS = 120
LIMIT_BYTES = 2 * 2**30
TAPE = "<poet tape>"
_NEVER = (
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
    "os.startfile", "pty.spawn", "socket.connect", "socket.bind", "pickle.find_class",
    "webbrowser.open", "ctypes.dlopen", "os.putenv",
)  # fmt: skip
_CHANGING = (
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.symlink", "os.truncate", "shutil.move", "shutil.rmtree", "shutil.copyfile",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Watches from `armed` on; `seen` is what happened that must not."""

    def __init__(self, folder: Path) -> None:
        self.armed = False
        self.seen: list[str] = []
        self._inside = os.path.realpath(folder) + os.sep
        paths = sysconfig.get_paths()
        homes = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        homes.add(str(Path(__file__).parents[2]))
        self._homes = tuple(os.path.realpath(home) + os.sep for home in homes)
        sys.addaudithook(self._hear)
        faulthandler.register(signal.SIGXCPU, chain=True)

    def limit_memory(self) -> None:
        """So much more than what this process has by now."""
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + LIMIT_BYTES, now + LIMIT_BYTES))

    def limit_time(self) -> None:
        """From now on; the process ends when it is over."""
        used = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used + LIMIT_SECONDS, resource.RLIM_INFINITY))
        faulthandler.dump_traceback_later(WAIT_SECONDS, exit=True)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in _NEVER:
            self.seen.append(f"{event} {str(arguments)[:200]}")
        elif event in ("exec", "compile"):
            self._code(event, arguments)
        elif event == "open":
            self._opened(*arguments)
        elif event in _CHANGING:
            for path in arguments[:2] if event != "shutil.copyfile" else arguments[1:2]:
                self._changed(event, path)
        elif event == "import" and not self._is_known(arguments[0]):
            self.seen.append(f"import of {arguments[0]}")

    def _code(self, event: str, arguments: tuple[Any, ...]) -> None:
        about = arguments[0] if event == "exec" else arguments[1]
        name = about.co_filename if isinstance(about, types.CodeType) else about
        if name != TAPE and not os.path.realpath(str(name)).startswith(self._homes):
            self.seen.append(f"{event} of {str(name)[:200]}")

    def _opened(self, path: Any, mode: str | None, flags: int) -> None:
        if (flags & _WRITING) or (mode is not None and set(mode) & set("wax+")):
            self._changed("open", path)

    def _changed(self, event: str, path: Any) -> None:
        if isinstance(path, int) or path is None or str(path) == os.devnull:
            return
        folder, name = os.path.split(os.fsdecode(path))
        if not folder and event in ("open", "os.remove", "os.rename", "os.link"):
            return  # relative to an open folder, or to the one that mutants are used in
        if not os.path.join(os.path.realpath(folder), name).startswith(self._inside):
            self.seen.append(f"{event} {str(path)[:200]}")

    def _is_known(self, name: str) -> bool:
        top = name.partition(".")[0]
        return top in sys.modules or top in sys.stdlib_module_names
