"""A folder that is this user's alone, whose files prove that they were written here.

The folder has mode 0700, and a key in it, mode 0600, that nobody else has seen. A file carries an
HMAC of its name and its content: one that was edited, renamed, or brought by somebody else is not
given out. Nor is anything where others could read or write the folder or the key, where somebody
else owns them, or where a link stands in their place. `NotOurs` says what is wrong.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

KEY = "key"
KEY_BYTES = 32
MAX_FILE_BYTES = 2**30
_MARK_BYTES = hashlib.sha256().digest_size
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NotOurs(Exception):
    """Why something is not to be trusted, in words."""


class PrivateFolder:
    """A folder that is open; whatever happens to its path, files are read and written in it."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle
        about = os.fstat(handle)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise NotOurs(f"the folder {path} is not this user's alone: {_remedy(path, 700)}")

    def read(self, name: str) -> bytes:
        """The content of a file that was written here under this name."""
        sealed = self._content(name, MAX_FILE_BYTES)
        mark, content = sealed[:_MARK_BYTES], sealed[_MARK_BYTES:]
        if not hmac.compare_digest(mark, self._mark(name, content)):
            raise NotOurs(f"{self.path / name} was not written here by this user under that name")
        os.utime(name, dir_fd=self._handle, follow_symlinks=False)
        return content

    def write(self, name: str, content: bytes) -> None:
        """A file, whole or not at all."""
        with self._unfinished(self._mark(name, content) + content) as part:
            os.replace(part, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def remove_oldest(self, suffix: str, most: int) -> None:
        """Keep so many files that end so, those that were used last."""
        with os.scandir(self._handle) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(suffix)]
        used = {
            name: os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mtime_ns
            for name in names
        }
        for name in sorted(names, key=used.__getitem__)[:-most]:
            os.unlink(name, dir_fd=self._handle)

    def _mark(self, name: str, content: bytes) -> bytes:
        made = hmac.new(self._key(), digestmod=hashlib.sha256)
        made.update(os.fsencode(name) + b"\0")
        made.update(content)
        return made.digest()

    def _key(self) -> bytes:
        """The folder's key. Of processes that make it at once, the first one's counts for all."""
        try:
            found = self._content(KEY, KEY_BYTES)
        except FileNotFoundError:
            with (
                self._unfinished(secrets.token_bytes(KEY_BYTES)) as part,
                contextlib.suppress(FileExistsError),
            ):
                os.link(part, KEY, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            found = self._content(KEY, KEY_BYTES)
        if len(found) != KEY_BYTES:
            raise NotOurs(f"{self.path / KEY} is not a key: remove it")
        return found

    def _content(self, name: str, most: int) -> bytes:
        try:
            handle = os.open(name, _READ, dir_fd=self._handle)
        except FileNotFoundError:
            raise
        except OSError as error:  # a link, among other things
            raise NotOurs(f"{self.path / name} cannot be read: {error.strerror}") from None
        with open(handle, "rb") as file:
            about = os.fstat(handle)
            path = self.path / name
            if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                raise NotOurs(f"{path} is not a file that was written here")
            if about.st_uid != os.geteuid() or about.st_mode & 0o077:
                raise NotOurs(f"{path} is not this user's alone: {_remedy(path, 600)}")
            return file.read(most + 1)

    @contextlib.contextmanager
    def _unfinished(self, content: bytes) -> Iterator[str]:
        """A file under another name, on disk and to be given its own; gone afterwards."""
        name = f".{secrets.token_hex(8)}.part"
        try:
            with open(os.open(name, _NEW, 0o600, dir_fd=self._handle), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield name
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._handle)


@contextlib.contextmanager
def private_folder(path: Path, make: bool = False) -> Iterator[PrivateFolder]:
    """The folder, made if it is missing and `make` says so; no link to one."""
    if make:
        _make(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotOurs(f"{path} is not a folder of this user: {error.strerror}") from None
    try:
        yield PrivateFolder(path, handle)
    finally:
        os.close(handle)


def _make(path: Path) -> None:
    """A folder and those above it, as far as they are missing: this user's alone."""
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(mode=0o700)
        except FileNotFoundError:
            _make(path.parent)
            path.mkdir(mode=0o700)


def _remedy(path: Path, mode: int) -> str:
    return f"chmod {mode} {path}, or remove it"
