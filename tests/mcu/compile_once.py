"""A C compiler that compiles nothing twice: `compile_once.py KEPT COMPILER WORD...`.

Each `.c` of a command becomes an object of its own in the folder KEPT, under a name made of the
compiler, its words, and the text of the file and of all that it includes; then they are linked, as
one command would have done. What does not compile is not kept, and other commands just run.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def texts(source: Path, folders: list[Path], seen: dict[Path, bytes]) -> dict[Path, bytes]:
    """A file and what it includes, but for the compiler's own headers."""
    if source not in seen:
        seen[source] = source.read_bytes()
        for name in INCLUDE.findall(seen[source]):
            places = (folder / os.fsdecode(name) for folder in (source.parent, *folders))
            found = next((place for place in places if place.is_file()), None)
            if found is not None:
                texts(found, folders, seen)
    return seen


def compiled(source: str, words: list[str], kept: Path) -> str:
    folders = [Path(word[2:]) for word in words if word.startswith("-I")]
    parts = [*map(os.fsencode, words), *texts(Path(source), folders, {}).values()]
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    made = kept / f"{key}.o"
    if not made.exists():
        new = kept / f"{key}.{os.getpid()}.o"
        code = subprocess.run([*words, "-c", source, "-o", str(new)], check=False).returncode
        if code:
            sys.exit(code)
        os.replace(new, made)
    return str(made)


def main(kept: Path, compiler: str, *words: str) -> None:
    command, product = [compiler, *words], "-o"
    if product in words and not {"-c", "-E", "-S"} & set(words):
        at = command.index(product)
        alone = [word for word in (*command[:at], *command[at + 2 :]) if not word.endswith(".c")]
        command = [compiled(w, alone, kept) if w.endswith(".c") else w for w in command]
    os.execv(compiler, command)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
