"""Power: joules from a counter in the hardware, where there is one.

RAPL counts what the processor packages of a Linux machine take, NVML what one NVIDIA GPU takes.
Both count whole parts: what other processes do is in them, and what the rest of the machine takes
is not. Machines without a counter, virtual ones among them, get their watts from a board's figures.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple, Protocol

from poet.errors import PoetError

RAPL = Path("/sys/class/powercap")
_IDLE_SECONDS = 1.0


class Counter(Protocol):
    """Something that counts joules."""

    name: str

    def joules(self) -> float:
        """Since some moment in the past; it only grows."""


class Rapl:
    """The sum over the processor packages. Each counts microjoules and starts over at a limit."""

    def __init__(self, folder: Path = RAPL) -> None:
        self._packages = [
            zone
            for zone in sorted(folder.glob("intel-rapl:*"))
            if zone.name.count(":") == 1 and _is_readable(zone / "energy_uj")
        ]
        if not self._packages:
            raise PoetError(f"no RAPL counter can be read in {folder}")
        count = len(self._packages)
        self.name = f"RAPL ({count} package{'s' if count > 1 else ''})"
        self._limits = [_number(zone / "max_energy_range_uj") for zone in self._packages]
        self._last = [_number(zone / "energy_uj") for zone in self._packages]
        self._total = 0

    def joules(self) -> float:
        now = [_number(zone / "energy_uj") for zone in self._packages]
        for before, after, limit in zip(self._last, now, self._limits, strict=True):
            self._total += after - before if after >= before else after - before + limit
        self._last = now
        return self._total / 1e6


class Nvml:
    """One GPU, as its driver counts it."""

    def __init__(self, index: int = 0) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._read: Callable[[object], int] = pynvml.nvmlDeviceGetTotalEnergyConsumption
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._read(self._handle)
        except ImportError:
            raise PoetError("reading a GPU's energy needs nvidia-ml-py") from None
        except pynvml.NVMLError as error:
            raise PoetError(f"the GPU's energy counter cannot be read: {error}") from None
        self.name = f"NVML (GPU {index})"

    def joules(self) -> float:
        return self._read(self._handle) / 1e3


def find_counter(device: str) -> Counter | None:
    """The counter for this kind of device (`cpu` or `cuda`), or None."""
    try:
        return Nvml() if device == "cuda" else Rapl()
    except PoetError:
        return None


class Spent(NamedTuple):
    seconds: float
    joules: float

    @property
    def watts(self) -> float:
        return self.joules / self.seconds if self.seconds else 0.0


class Meter:
    """Watts of stretches of time, beside those of doing nothing."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        with self.stretch() as idle:
            sleep(_IDLE_SECONDS)
        self.idle_watts = idle[0].watts

    @contextmanager
    def stretch(self) -> Iterator[list[Spent]]:
        """What a block takes, in the list once it has ended."""
        spent: list[Spent] = []
        joules, started = self.counter.joules(), perf_counter()
        yield spent
        spent.append(Spent(perf_counter() - started, self.counter.joules() - joules))

    def beyond_idle(self, spent: Spent) -> float:
        """The watts of a stretch on top of those of an idle machine."""
        return max(0.0, spent.watts - self.idle_watts)


def _number(path: Path) -> int:
    return int(path.read_text())


def _is_readable(path: Path) -> bool:
    try:
        _number(path)
    except (OSError, ValueError):
        return False
    return True
