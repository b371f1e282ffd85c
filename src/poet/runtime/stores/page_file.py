"""The file that pages lie in: made, locked, reserved, read, written, removed.

The file's name says whose it is; its lock says whether that process still lives, since the kernel
drops the lock with the process. Files left behind by processes that were killed are removed by the
next one that uses the folder.

Direct I/O keeps pages out of the page cache, where they would take the RAM they were to leave, and
is faster. It wants memory, offsets and lengths aligned to blocks; that is for the caller to see to.
Pages need not outlive the process, so nothing is ever synced.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from poet.errors import PageError, PoetError
from poet.values.quantities import bytes_text

BLOCK_BYTES = 4096
_NAME = re.compile(r"poet-pages-(\d{1,9})-[0-9a-f]+\.bin")
_AGAIN = "Start again from the last checkpoint."


class PageFile:
    def __init__(self, folder: str | Path, direct: bool) -> None:
        self.folder = Path(folder)
        self.removed_stale: tuple[Path, ...] = ()
        self._create()
        self.direct = direct and self._go_direct()

    def _create(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.removed_stale += _remove_stale(self.folder)
            self.path, self._handle = _create(self.folder)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PoetError(
                f"cannot keep pages in {str(self.folder)!r}: {reason}. Give a folder that can be "
                "written."
            ) from None

    @property
    def align_bytes(self) -> int:
        """What addresses, offsets and lengths must be multiples of."""
        return BLOCK_BYTES if self.direct else 1

    def reserve(self, nbytes: int) -> None:
        """Have exactly so many bytes on the disk, in a new file if this was removed, or raise."""
        if os.fstat(self._handle).st_nlink == 0:
            removed = self._handle
            self._create()
            os.close(removed)
            self.direct = self.direct and self._go_direct()
        held = os.fstat(self._handle).st_size
        missing = nbytes - held
        try:
            free = shutil.disk_usage(self.folder).free
            if missing > free:
                raise PoetError(
                    f"the pages need {bytes_text(nbytes)} in {self.folder}, where "
                    f"{bytes_text(free + held)} are free. Free {bytes_text(missing - free)}, or "
                    "give a folder on a larger disk."
                )
            if missing > 0:
                os.posix_fallocate(self._handle, 0, nbytes)
            else:
                os.ftruncate(self._handle, nbytes)
        except OSError as error:
            os.ftruncate(self._handle, 0)  # give back the part that was found
            raise PoetError(
                f"cannot reserve {bytes_text(nbytes)} for pages in {self.folder}: "
                f"{error.strerror}. Free space there, or give a folder on a larger disk."
            ) from None

    def write(self, page: int, data: memoryview, offset: int) -> None:
        self._move(os.pwritev, "written to", page, data, offset)

    def read(self, page: int, data: memoryview, offset: int) -> None:
        self._move(os.preadv, "read from", page, data, offset)

    def wrong(self, page: int, what: str) -> PageError:
        return PageError(
            f"page {page} in {self.path} is not what was written there: {what}. Something else "
            f"wrote to the file, or the disk fails. {_AGAIN} If it happens again, give a folder on "
            "another disk."
        )

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._handle)

    def _go_direct(self) -> bool:
        """Whether the file system can do direct I/O; if so, it does from now on."""
        flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._handle, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.ftruncate(self._handle, BLOCK_BYTES)
            with mmap.mmap(-1, BLOCK_BYTES) as block:
                os.preadv(self._handle, [block], 0)  # some only refuse here
        except OSError:
            fcntl.fcntl(self._handle, fcntl.F_SETFL, flags)
            return False
        finally:
            os.ftruncate(self._handle, 0)
        return True

    def _move(
        self,
        call: Callable[[int, Sequence[memoryview], int], int],
        verb: str,
        page: int,
        data: memoryview,
        offset: int,
    ) -> None:
        while True:
            about = os.fstat(self._handle)
            if about.st_nlink == 0:  # what it held is still there for us, but nobody's to rely on
                raise PageError(
                    f"page {page} could not be {verb} {self.path}: the file was removed while it "
                    f"was in use. Leave such files alone. {_AGAIN}"
                )
            if about.st_size < offset + len(data):
                raise self.wrong(page, f"the file was cut to {about.st_size:,} bytes")
            try:
                moved = call(self._handle, [data], offset)
            except OSError as error:
                raise PageError(
                    f"page {page} could not be {verb} {self.path} at byte {offset:,}: "
                    f"{error.strerror}. Look after the disk, or give a folder on another. {_AGAIN}"
                ) from None
            if moved == len(data):
                return
            # The next call says why, unless there is no reason.
            data, offset = data[moved:], offset + moved


def _create(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / f"poet-pages-{os.getpid()}-{secrets.token_hex(4)}.bin"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        # Before the lock is taken another process may think the file stale and remove it.
        if _lock(handle) is not False and os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Whether the lock is ours now; None where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _remove_stale(folder: Path) -> tuple[Path, ...]:
    """Remove the page files of processes that are gone."""
    removed = []
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # somebody else's, or removed just now
            continue
        locked = _lock(handle)
        if locked or (locked is None and not _lives(int(match[1]))):
            with contextlib.suppress(OSError):  # not ours to remove
                path.unlink()
                removed.append(path)
        os.close(handle)
    return tuple(removed)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
