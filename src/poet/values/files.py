"""Files: values in and out, with errors that name the file, the field and the value.

Reading never trusts: size, encoding, syntax, nesting, unknown fields, versions and every value's
own rules are checked, and whatever is wrong becomes one `PoetError`. Writing never leaves half a
file: a temporary file beside the target is filled, flushed to disk and renamed over it.
"""

import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from poet.errors import PoetError
from poet.values.device import Costs, Device
from poet.values.graph import Graph, printable
from poet.values.plan import Plan
from poet.values.profile import Profile

MAX_FILE_BYTES = 256 * 2**20

Value = TypeVar("Value")
_FORMATS: dict[str, type[Any]] = {
    "poet-plan/1": Plan,
    "poet-graph/1": Graph,
    "poet-costs/1": Costs,
    "poet-device/1": Device,
    "poet-profile/1": Profile,
}


def read_json(path: str | Path, kind: type[Value]) -> Value:
    """One value of `kind` from a JSON file."""
    return decode_json(read_bytes(path), kind, path)


def read_toml(path: str | Path, kind: type[Value]) -> Value:
    """One value of `kind` from a TOML file."""
    return decode_toml(read_bytes(path), kind, path)


def read_bytes(path: str | Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PoetError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise PoetError(f"cannot read {str(path)!r}: {error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise PoetError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes, the most POET reads")
    return data


def decode_json(data: bytes, kind: type[Value], path: str | Path) -> Value:
    """One value of `kind` from JSON text; `path` is for messages."""

    def decode(kind: Any) -> Any:
        return msgspec.json.decode(data, type=kind)

    return _decode(decode, kind, path)


def decode_toml(data: bytes, kind: type[Value], path: str | Path) -> Value:
    """One value of `kind` from TOML text; `path` is for messages."""
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PoetError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise PoetError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise PoetError(f"{path} is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise PoetError(f"{path} is not valid TOML: {error}") from None

    def decode(kind: Any) -> Any:
        return msgspec.convert(table, kind)

    return _decode(decode, kind, path)


def format_of(data: bytes, path: str | Path) -> str | None:
    """The `format` a JSON file declares, or None where it declares none."""
    found = decode_json(data, dict[str, msgspec.Raw], path).get("format")
    return None if found is None else decode_json(bytes(found), str, f"{path} (format)")


def _decode(decode: Callable[[Any], Any], kind: type[Value], path: str | Path) -> Value:
    try:
        _check_format(decode, kind, path)
        value: Value = decode(kind)
        return value
    except msgspec.ValidationError as error:
        raise PoetError(f"{path}: {_shorten(_explain(str(error), decode))}") from None
    except msgspec.DecodeError as error:
        raise PoetError(f"{path} is not valid JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise PoetError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise PoetError(f"{path} is nested too deeply") from None


class _Header(msgspec.Struct):
    format: str | None = None


def _check_format(decode: Callable[[Any], Any], kind: type[Any], path: str | Path) -> None:
    wanted = next((tag for tag, known in _FORMATS.items() if known is kind), None)
    if wanted is None:
        return
    found = decode(_Header).format
    if found == wanted:
        return
    if found is None:
        raise PoetError(f"{path} has no field 'format'; POET expects {wanted!r} there")
    family, _, version = found.rpartition("/")
    if family == wanted.rpartition("/")[0]:
        raise PoetError(f"{path} has format version {version!r}; this POET reads {wanted!r}")
    raise PoetError(f"{path} is a {found!r} file; POET expects {wanted!r} here")


def _shorten(text: str) -> str:
    """Without the middle of absurdly long numbers, and without control characters."""
    return printable(re.sub(r"(\d{20})\d{20,}", r"\1…", text))


_PLACE = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<place>\$[^`]*)`)?$", re.DOTALL)


def _explain(message: str, decode: Callable[[Any], Any]) -> str:
    """msgspec's message with its place in words, and the value that stands there."""
    match = _PLACE.match(message)
    if match is None or match["place"] is None:
        return message
    place = match["place"].removeprefix("$").removeprefix(".")
    text = f"{place}: {match['problem']}" if place else match["problem"]
    try:
        value = decode(Any)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # it is wrong for any reader
        return text
    for name, index in re.findall(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]", place):
        if name.isdigit() or index.isdigit():
            name, index = "", name or index
        if name and isinstance(value, dict) and name in value:
            value = value[name]
        elif index.isdigit() and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return text
    if isinstance(value, dict | list):
        return text
    return f"{text}; the value is {str(value)[:60]!r}"


def check_writable(path: str | Path, force: bool) -> None:
    """Refuse, before any work is done, a target that exists (unless `force`) or is unwritable."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise PoetError(f"cannot write {path}: it is a folder")
        if target.exists() and not target.is_file():
            raise PoetError(f"cannot write {path}: it is not an ordinary file")
        if target.exists() and not force:
            raise PoetError(f"{path} exists already. Choose another name, or overwrite: force=True")
        if not target.parent.is_dir():
            raise PoetError(f"cannot write {path}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK):
            raise PoetError(f"cannot write {path}: the folder {target.parent} is not writable")
    except (OSError, ValueError) as error:
        raise PoetError(f"cannot write {str(path)!r}: {error}") from None


def write_json(value: msgspec.Struct, path: str | Path, force: bool = False) -> None:
    """Write a value as JSON, whole or not at all."""
    write_text(msgspec.json.encode(value) + b"\n", path, force)


def write_text(content: str | bytes, path: str | Path, force: bool = False) -> None:
    """Write a file, whole or not at all."""
    write_parts([content.encode() if isinstance(content, str) else content], path, force)


def write_parts(parts: Iterable[bytes], path: str | Path, force: bool = False) -> None:
    """The same for what need not be in memory all at once."""
    check_writable(path, force)
    target = Path(os.path.realpath(path))  # a link stays a link
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
        try:
            with open(handle, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise PoetError(f"cannot write {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise PoetError(f"cannot write {str(path)!r}: {error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
