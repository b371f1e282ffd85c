"""Page stores give back what they were given, or say why not."""

import contextlib
import ctypes
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poet.errors import PageError, PoetError
from poet.runtime.stores.base import Store
from poet.runtime.stores.checksum import checksum
from poet.runtime.stores.file_store import CHUNK_BYTES, SMALL_BYTES, FileStore
from poet.runtime.stores.memory_store import MemoryStore

KINDS: dict[str, Callable[[Path], Store]] = {
    "direct": FileStore,
    "buffered": lambda folder: FileStore(folder, direct=False),
    "memory": lambda folder: MemoryStore(),
}
SIZES = (
    *(0, 1, 63, 64, 4095, 4096, 4097, 4104, 65_536),
    *(SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1),
    *(CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 5 * CHUNK_BYTES + 13),
)
BIG_BYTES = 5 * CHUNK_BYTES + 13
WAITS_SECONDS = 60


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = KINDS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[FileStore]:
    made = FileStore(tmp_path / "pages")
    yield made
    made.close()


def noise(nbytes: int, seed: int = 0) -> torch.UntypedStorage:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
    return made.untyped_storage()


def blank(nbytes: int) -> torch.UntypedStorage:
    return torch.zeros(nbytes, dtype=torch.uint8).untyped_storage()


def content(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


# Round trips


@given(data=st.data())
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_order_of_transfers_is_as_good_as_a_dict(store: Store, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=6))
    store.reserve(dict(enumerate(sizes)))
    kept: dict[int, bytes] = {}
    reads = []
    seed = 0
    for page, write, now in data.draw(
        st.lists(
            st.tuples(st.integers(0, len(sizes) - 1), st.booleans(), st.booleans()), max_size=25
        )
    ):
        if write or page not in kept:
            seed += 1
            storage = noise(sizes[page], seed)
            kept[page] = content(storage)
            transfer = store.write(page, storage, now=now)
        else:
            storage = blank(sizes[page])
            transfer = store.read(page, storage, now=now)
            reads.append((storage, kept[page]))
        assert transfer.done or not now
    store.flush()
    for storage, wanted in reads:
        assert content(storage) == wanted


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64],
)
def test_tensors_of_any_dtype_come_back_in_their_emptied_storage(
    store: Store, dtype: torch.dtype
) -> None:
    tensor = (torch.randn(300, 401) * 9).to(dtype)
    view, before = tensor.t()[5:], tensor.clone()
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    store.reserve({7: nbytes})
    store.write(7, storage).wait()
    storage.resize_(0)
    storage.resize_(nbytes)
    store.read(7, storage).wait()
    assert torch.equal(tensor, before)
    assert torch.equal(view, before.t()[5:])


def test_memory_at_odd_addresses(store: Store) -> None:
    raw = bytearray(random.Random(0).randbytes(2 * BIG_BYTES))
    for distance in (1, 63, 777, 4095):
        source = torch.frombuffer(raw, dtype=torch.uint8, offset=distance, count=BIG_BYTES)
        store.reserve({0: BIG_BYTES})
        store.write(0, source.untyped_storage())
        target = blank(BIG_BYTES)
        store.read(0, target).wait()
        assert content(target) == bytes(raw[distance : distance + BIG_BYTES])


def test_a_page_in_fresh_memory_of_many_megabytes(file_store: FileStore) -> None:
    source = noise(33 * 2**20)  # so large that it is given huge pages
    wanted = content(source)
    file_store.reserve({0: len(wanted)})
    file_store.write(0, source).wait()
    source.resize_(0)
    source.resize_(len(wanted))
    file_store.read(0, source).wait()
    assert content(source) == wanted


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("nbytes", [0, 1000, BIG_BYTES])
def test_pages_of_a_gpu(store: Store, nbytes: int) -> None:
    """Whatever stream they are computed and used on."""
    store.reserve({0: nbytes})
    size = nbytes // 4
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for _ in range(5):
            slow = torch.rand(4096, 4096, device="cuda")
            for _ in range(20):
                slow = slow @ slow.cos()
            page = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
            page[: 4 * size].view(torch.float32).copy_(slow.view(-1)[:size])
            store.write(0, page.untyped_storage())
            back = torch.empty_like(page)
            store.read(0, back.untyped_storage()).wait()
            assert torch.equal(page, back)
            host = blank(nbytes)
            store.read(0, host).wait()
            assert content(host) == bytes(page.cpu().tolist())


def test_reserving_again_forgets_and_lays_out_anew(store: Store) -> None:
    storage = noise(BIG_BYTES)
    store.reserve({0: BIG_BYTES})
    store.write(0, storage).wait()
    before = store.size_bytes
    for pages in ({0: BIG_BYTES, 1: 10}, {}, {0: BIG_BYTES}):
        store.reserve(pages)
        assert store.size_bytes >= sum(pages.values())
    assert store.size_bytes == before
    with pytest.raises(PageError, match="page 0 was never written"):
        store.read(0, storage).wait()
    store.write(0, storage).wait()
    store.read(0, blank(BIG_BYTES)).wait()


@pytest.mark.parametrize("chunk_bytes", [4096, 20_480, 4 * 2**20])
def test_buffers_of_any_size(chunk_bytes: int, tmp_path: Path) -> None:
    with contextlib.closing(FileStore(tmp_path, chunk_bytes=chunk_bytes)) as store:
        assert 2 * chunk_bytes < store.buffer_bytes <= 3 * chunk_bytes
        sizes = dict(enumerate((0, 1, 4096, 4097, 20_480, 20_481, 300_000, CHUNK_BYTES + 1)))
        store.reserve(sizes)
        for page, nbytes in sizes.items():
            store.write(page, noise(nbytes, page))
        targets = {page: blank(nbytes) for page, nbytes in sizes.items()}
        for page, target in targets.items():
            store.read(page, target)
        store.flush()
        for page, nbytes in sizes.items():
            assert content(targets[page]) == content(noise(nbytes, page))
    for wrong in (0, 4095, -4096, 5000):
        with pytest.raises(PoetError, match=f"chunk_bytes is {wrong}; .* multiple of 4096"):
            FileStore(tmp_path, chunk_bytes=wrong)


def test_counters(store: Store) -> None:
    store.reserve({0: 1000, 1: BIG_BYTES})
    store.write(0, noise(1000), now=True)
    store.write(1, noise(BIG_BYTES))
    store.read(1, noise(BIG_BYTES))
    store.flush()
    assert (store.written_bytes, store.read_bytes) == (1000 + BIG_BYTES, BIG_BYTES)
    assert store.seconds > 0


# Threads


def test_transfers_run_beside_the_caller(
    file_store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, write = threading.Event(), os.pwritev

    def held(*args: Any) -> int:
        assert go.wait(WAITS_SECONDS)
        return write(*args)

    monkeypatch.setattr(os, "pwritev", held)
    file_store.reserve({0: BIG_BYTES})
    transfer = file_store.write(0, noise(BIG_BYTES))
    assert not transfer.done
    go.set()
    transfer.wait()
    assert transfer.done


def test_a_storage_lives_as_long_as_its_transfer(store: Store) -> None:
    store.reserve({0: BIG_BYTES})
    storage = noise(BIG_BYTES)
    wanted, lives = content(storage), weakref.ref(storage)
    transfer = store.write(0, storage)
    del storage
    noise(BIG_BYTES, seed=1)  # would take the memory over
    transfer.wait()
    store.flush()
    assert lives() is None
    target = blank(BIG_BYTES)
    store.read(0, target).wait()
    assert content(target) == wanted


def test_a_store_used_only_now_has_no_thread_for_small_pages(store: Store) -> None:
    before = threads()
    store.reserve({0: 1000})
    store.write(0, noise(1000), now=True).wait()
    store.read(0, noise(1000), now=True).wait()
    assert threads() == before


def test_a_forgotten_store_ends_its_threads_and_removes_its_file(tmp_path: Path) -> None:
    before = threads()
    forgotten = FileStore(tmp_path)
    forgotten.reserve({0: BIG_BYTES})
    forgotten.write(0, noise(BIG_BYTES)).wait()
    assert threads() > before
    del forgotten
    gc.collect()
    assert not list(tmp_path.iterdir())
    ends = time.monotonic() + WAITS_SECONDS
    while threads() > before:
        assert time.monotonic() < ends


def test_close_waits_deletes_and_can_be_repeated(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a" / "b")
    assert store.path.parent == tmp_path / "a" / "b"
    assert store.path.name.startswith(f"poet-pages-{os.getpid()}-")
    store.reserve({0: BIG_BYTES})
    transfer = store.write(0, noise(BIG_BYTES))
    store.close()
    assert transfer.done
    transfer.wait()
    assert not store.path.exists()
    store.close()
    with pytest.raises(PoetError, match="closed"):
        store.write(0, noise(BIG_BYTES))
    with pytest.raises(PoetError, match="closed"):
        store.reserve({})


def interrupted(call: Callable[[], None], after_seconds: float) -> bool:
    """Whether Ctrl-C, once, so many seconds after its start, came to a call in the main thread."""
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, after_seconds)
        call()
        armed = False
        return False
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


# It may come in a destructor, where Python swallows it with a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_any_moment_leaves_a_store_that_works(kind: str, tmp_path: Path) -> None:
    sizes = {0: 1000, 1: CHUNK_BYTES + 5, 2: BIG_BYTES}
    storages = {page: noise(nbytes, page) for page, nbytes in sizes.items()}
    moments, caught = random.Random(0), 0

    def use(store: Store) -> None:
        for page, storage in storages.items():
            store.write(page, storage, now=moments.random() < 0.5)
            store.read(page, blank(sizes[page]), now=moments.random() < 0.5)
        with contextlib.suppress(PageError):  # a page whose write was interrupted
            store.flush()

    for _ in range(40):
        with contextlib.closing(KINDS[kind](tmp_path)) as store:
            store.reserve(sizes)
            for _ in range(4):  # the first while threads start
                caught += interrupted(partial(use, store), 10 ** moments.uniform(-5, -2.5))
            with contextlib.suppress(PageError):
                store.flush()
            for page, nbytes in sizes.items():
                store.write(page, storages[page])
                target = blank(nbytes)
                store.read(page, target).wait()
                assert content(target) == content(storages[page])
    assert caught > 20


# What goes wrong


def test_a_page_that_was_never_written(store: Store) -> None:
    store.reserve({3: 100, 4: BIG_BYTES})
    for page, nbytes in ((3, 100), (4, BIG_BYTES)):
        for now in (False, True):
            transfer = store.read(page, blank(nbytes), now=now)
            with pytest.raises(PageError, match=rf"page {page} was never written to .*Page it out"):
                transfer.wait()


def test_pages_and_sizes_that_were_not_reserved(store: Store) -> None:
    with pytest.raises(PoetError, match="page 1 has no place"):
        store.write(1, blank(10))
    store.reserve({1: 10})
    for move in (store.write, store.read):
        with pytest.raises(PoetError, match="reserved with 10 bytes; the storage has 4,000"):
            move(1, blank(4000))
        with pytest.raises(PoetError, match="page 2 has no place"):
            move(2, blank(10))
        with pytest.raises(PoetError, match="device meta"):
            move(1, torch.empty(10, dtype=torch.uint8, device="meta").untyped_storage())
    with pytest.raises(PoetError, match="page 5 cannot have -1 bytes"):
        store.reserve({5: -1})


@pytest.mark.parametrize("nbytes", [1, 1000, SMALL_BYTES, SMALL_BYTES + 1, BIG_BYTES])
@pytest.mark.parametrize("now", [False, True])
def test_one_flipped_bit_is_found(file_store: FileStore, nbytes: int, now: bool) -> None:
    file_store.reserve({0: 5000, 1: nbytes})
    file_store.write(0, noise(5000))
    file_store.write(1, noise(nbytes))
    file_store.flush()
    start = file_store.size_bytes - -(-nbytes // 4096) * 4096
    for at in (0, nbytes // 2, nbytes - 1):
        _flip(file_store.path, start + at)
        transfer = file_store.read(1, blank(nbytes), now=now)
        with pytest.raises(PageError, match=r"page 1 in .*poet-pages-.*checksum.*checkpoint"):
            transfer.wait()
        file_store.read(0, blank(5000), now=now).wait()
        _flip(file_store.path, start + at)
        file_store.read(1, blank(nbytes), now=now).wait()


def _flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0b100]))


@pytest.mark.parametrize("kind", ["direct", "buffered"])
def test_a_file_cut_short_or_removed_is_found(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    assert isinstance(store, FileStore)
    store.reserve({0: 100, 1: BIG_BYTES})
    store.write(0, noise(100))
    store.write(1, noise(BIG_BYTES))
    store.flush()
    os.truncate(store.path, 4096 + CHUNK_BYTES + 10)
    with pytest.raises(PageError, match=r"page 1 in .*cut to 1,052,682 bytes"):
        store.read(1, blank(BIG_BYTES)).wait()
    store.read(0, blank(100)).wait()
    store.path.unlink()
    for move in (store.read, store.write):
        with pytest.raises(PageError, match=r"page 0 .*was removed"):
            move(0, blank(100)).wait()
    store.close()


def test_an_error_stops_neither_what_comes_after_nor_what_was_asked_before(
    file_store: FileStore,
) -> None:
    sizes = dict.fromkeys(range(6), BIG_BYTES) | {6: 100}
    file_store.reserve(sizes)
    for page, nbytes in sizes.items():
        file_store.write(page, noise(nbytes, page))
    file_store.flush()
    _flip(file_store.path, 2 * (BIG_BYTES // 4096 + 1) * 4096 + 2 * CHUNK_BYTES)
    targets = {page: blank(nbytes) for page, nbytes in sizes.items()}
    transfers = {page: file_store.read(page, targets[page]) for page in sizes}
    for page in sizes:
        if page == 2:
            with pytest.raises(PageError, match="page 2 in"):
                transfers[page].wait()
        else:
            transfers[page].wait()
            assert content(targets[page]) == content(noise(sizes[page], page))
    file_store.flush()  # the error was raised once already


def test_flush_raises_what_nobody_waited_for(store: Store) -> None:
    store.reserve({0: 100})
    store.read(0, blank(100))
    with pytest.raises(PageError, match="never written"):
        store.flush()
    store.flush()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below", "nul\0byte"):
        with pytest.raises(PoetError, match=r"cannot keep pages in .*Give a folder"):
            FileStore(folder)


def test_more_than_the_disk_has(file_store: FileStore) -> None:
    free = shutil.disk_usage(file_store.path.parent).free
    with pytest.raises(PoetError, match=r"the pages need .* are free\. Free .* larger disk"):
        file_store.reserve({0: free + 2**30})
    file_store.reserve({0: 100})
    file_store.write(0, noise(100)).wait()


def test_more_than_memory_or_the_limit() -> None:
    for limit_bytes, nbytes in ((1000, 1001), (None, 2**50)):
        store = MemoryStore(limit_bytes)
        with pytest.raises(PoetError, match=r"the pages need .*the limit is .*folder instead"):
            store.reserve({0: nbytes})
        store.close()


# Processes of their own

PREAMBLE = """
import atexit, os, resource, signal, sys, time, torch
from poet.errors import PoetError
from poet.runtime.stores.file_store import FileStore
def noise(nbytes):
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8).untyped_storage()
store = FileStore(sys.argv[1])
"""


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + script, str(folder)],
        capture_output=True,
        text=True,
        timeout=WAITS_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_disk_too_small_is_found_when_reserving_and_when_writing(tmp_path: Path) -> None:
    """The largest file a process may write stands for the disk's size."""
    out = run(
        """
def allow(nbytes): resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, -1))
allow(2**20)
try: store.reserve({0: 2**21})
except PoetError as error: print(error)
allow(2**30)
pages = {0: 2**19, 1: 2**23, 2: 2**19}
store.reserve(pages)
storages = {page: noise(nbytes) for page, nbytes in pages.items()}
for page in pages: store.write(page, storages[page]).wait()
allow(2**22)
transfers = {page: store.write(page, storages[page]) for page in pages}
for page, transfer in transfers.items():
    try: transfer.wait()
    except PoetError as error: print(type(error).__name__, error)
store.read(0, storages[0]).wait()
try: store.read(1, storages[1]).wait()
except PoetError as error: print(type(error).__name__, error)
""",
        tmp_path,
    )
    lines = out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("cannot reserve 2,097,152 B (2.0 MiB) for pages in")
    assert "File too large" in lines[0]
    for line, page in ((lines[1], 1), (lines[2], 2)):
        assert line.startswith(f"PageError page {page} could not be written to")
        assert "File too large" in line
    assert lines[3].startswith("PageError page 1 cannot be read from")
    assert "its last write, number 2, did not succeed" in lines[3]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk(tmp_path: Path) -> None:
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4m", "poet-test", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with contextlib.closing(FileStore(tmp_path)) as store:
            with pytest.raises(PoetError, match=r"need 8,388,608 B .*4,194,304 B .*are free"):
                store.reserve({0: 2**23})
            store.reserve({0: 2**21})
            store.write(0, noise(2**21)).wait()
            store.reserve({0: 2**21, 1: 2**20})  # its own old pages do not stand in its way
            with pytest.raises(PoetError, match=r"need 5,242,880 B .*4,194,304 B .*are free"):
                store.reserve({0: 5 * 2**20})
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_files_of_killed_processes_are_removed_and_those_of_living_ones_kept(
    tmp_path: Path,
) -> None:
    script = PREAMBLE + "store.reserve({0: 10**6}); print('ready', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        unrelated = tmp_path / "poet-pages-notes.bin"
        unrelated.touch()
        killed, living = processes
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        (stale,) = tmp_path.glob(f"poet-pages-{killed.pid}-*.bin")
        (kept,) = tmp_path.glob(f"poet-pages-{living.pid}-*.bin")
        recycled = tmp_path / f"poet-pages-{os.getpid()}-00ff.bin"  # our number, not our file
        recycled.touch()
        own = FileStore(tmp_path)
        assert set(own.removed_stale) == {stale, recycled}
        other = FileStore(tmp_path)
        assert other.removed_stale == ()
        assert {path.name for path in tmp_path.iterdir()} == {
            own.path.name, other.path.name, kept.name, unrelated.name
        }  # fmt: skip
        own.close()
        other.close()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_an_open_store_does_not_outlive_the_interpreter_nor_hold_it_up(tmp_path: Path) -> None:
    script = """
store.reserve(dict.fromkeys(range(20), 2**22))
for page in range(20): store.write(page, noise(2**22))
for page in range(20): store.read(page, noise(2**22))
print('leaving')
"""
    assert run(script, tmp_path) == "leaving\n"
    assert not list(tmp_path.iterdir())


def test_a_forked_child_neither_uses_nor_removes_its_parents_store(tmp_path: Path) -> None:
    out = run(
        """
store.reserve({0: 2**22})
kept = noise(2**22)
store.write(0, kept).wait()
child = os.fork()
if child == 0:
    try: store.write(0, kept)
    except PoetError as error: print(error, flush=True)
    store.close()
    atexit._run_exitfuncs()  # what Python does, without the end of torch's threads
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert store.path.exists()
store.read(0, kept).wait()
""",
        tmp_path,
    )
    assert "belongs to process" in out
    assert not list(tmp_path.iterdir())


def test_buffer_bytes_is_what_the_store_takes(tmp_path: Path) -> None:
    out = run(
        """
def resident():
    lines = open('/proc/self/status').read().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith('RssAnon'))
pages = {0: noise(2**23), 1: noise(2**16)}
torch.ones(8, 8).sum(0)
store.close()
before = resident()
store = FileStore(sys.argv[1])
store.reserve({page: storage.nbytes() for page, storage in pages.items()})
for _ in range(3):
    for page, storage in pages.items():
        store.write(page, storage)
        store.read(page, storage)
    store.flush()
print(resident() - before, store.buffer_bytes)
""",
        tmp_path,
    )
    taken, told = map(int, out.split())
    assert told <= taken <= told + 2**19  # besides the buffers, two threads' stacks


# The checksum


@given(nbytes=st.integers(1, 300_000), data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_change_within_a_block_changes_the_checksum(nbytes: int, data: st.DataObject) -> None:
    tensor = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    before = checksum(tensor)
    start = data.draw(st.integers(0, nbytes - 1))
    count = min(data.draw(st.integers(1, 4096)), nbytes - start)
    changed = tensor.clone()
    changed[start : start + count] ^= data.draw(st.integers(1, 255))
    assert checksum(changed) != before
    assert checksum(tensor.clone()) == before


def test_blocks_at_each_others_places_change_the_checksum() -> None:
    tensor = torch.randint(0, 256, (CHUNK_BYTES,), dtype=torch.uint8)
    before = checksum(tensor)
    blocks = tensor.view(-1, 4096)
    for other in range(1, len(blocks)):
        swapped = blocks.clone()
        swapped[[0, other]] = swapped[[other, 0]]
        assert checksum(swapped.view(-1)) != before
