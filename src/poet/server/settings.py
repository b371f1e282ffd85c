"""Settings: what a service may use, whom it answers, and where it keeps its jobs."""

import ipaddress
import os
from pathlib import Path

import msgspec

from poet.errors import PoetError

GIB = 2**30


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that may be chosen. `names` are host names under which others reach the service."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    names: tuple[str, ...] = ()
    workers: int = 1
    threads: int = 1
    """Of one job."""
    memory_bytes: int = 4 * GIB
    """The most that all processes of a job may hold."""
    plan_seconds: float = 600.0
    """The longest time limit of one plan that may be asked for."""
    job_seconds: float = 3600.0
    """The longest that a job may take, captures and all."""
    grace_seconds: float = 10.0
    """From being asked to stop to being killed: a plan in hand is replayed meanwhile."""
    result_seconds: float = 120.0
    """The same for a page or a folder of C made of a plan."""
    upload_bytes: int = 32 * 2**20
    upload_seconds: float = 60.0
    waiting_jobs: int = 100
    streams: int = 128
    """Connections at once that follow events."""
    connections: int = 512
    store_bytes: int = 4 * GIB
    """The oldest jobs that have ended are forgotten beyond it."""
    posts_a_minute: float = 120.0
    """Of one client, as requests below; a tenth of a minute's worth may come at once."""
    requests_a_minute: float = 3000.0

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise PoetError(f"a token must have at least {LEAST_TOKEN} characters")
        if self.token is None and not self.is_private:
            raise PoetError(
                f"others can reach {', '.join(self.names) or self.host}: it takes a token="
            )

    @property
    def is_private(self) -> bool:
        """Whether only programs of this machine reach the service."""
        return is_loopback(self.host) and not self.names


LEAST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Whether a host name or address, as it may stand in a URL, is this machine's alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def usual_folder() -> Path:
    """Where jobs are kept if nobody says."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "poet" / "serve"


def memory_for(workers: int) -> int:
    """What a job may take where there are so many at once: four fifths of the machine, shared."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(8 * GIB, total * 4 // 5 // workers))
