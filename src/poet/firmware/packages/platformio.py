"""PlatformIO: `library.json`. Its checker asks a registry about a license, so none is named."""

import json

from poet.firmware.packages.arduino import sketch
from poet.firmware.packages.contents import FLAGS, VERSION, Contents

USE = """
Name this folder in `lib_deps` of a project (`lib_deps = symlink:///where/it/is`), or copy it into
`lib/`. `library.json` has the compiler flags that keep the bits those of a host. The example
`train` is for the framework Arduino; the library is for any.
"""


def files(contents: Contents) -> dict[str, str]:
    manifest = {
        "name": contents.name,
        "version": VERSION,
        "description": contents.sentence,
        "keywords": ["training", "neural network", "on-device learning"],
        "authors": [{"name": "POET"}],
        "frameworks": "*",
        "platforms": "*",
        "headers": f"{contents.name}.h",
        "examples": [{"name": "train", "base": "examples/train", "files": ["train.ino"]}],
        "build": {"flags": list(FLAGS), "srcDir": "src", "includeDir": "src"},
    }
    return {
        "library.json": json.dumps(manifest, indent=2) + "\n",
        "examples/train/train.ino": sketch(contents),
    }
