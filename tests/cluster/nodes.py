"""Nodes: a Ray cluster of two on this machine's loopback, of which one can be killed.

Nothing of it is left when the context ends, and nobody else can join: it asks for a token.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HEAD, NODE = "127.0.0.2", "127.0.0.3"
"""Ray takes 127.0.0.1 for another name of the machine."""
START_SECONDS = 120.0
_STORE_BYTES = 80 << 20


class Node:
    """One `ray start` and all that it has started."""

    def __init__(self, address: str, arguments: list[str], log: Path, env: dict[str, str]) -> None:
        self.address, self._log = address, log
        ray = Path(sys.executable).parent / "ray"
        with open(log, "wb") as out:
            self._process = subprocess.Popen(
                [ray, "start", "--block", "--node-ip-address", address, "--num-cpus", "1",
                 "--object-store-memory", str(_STORE_BYTES), "--disable-usage-stats", *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it is up."""
        until = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in (said := self._log.read_text(errors="replace")):
            assert self._process.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.2)

    @property
    def processes(self) -> list[int]:
        return [self._process.pid, *offspring(self._process.pid)]

    def kill(self) -> None:
        """As when the machine's power goes."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGSTOP)  # it would tidy up behind them
        for number in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self._process.wait()


class Cluster:
    """Two nodes of one processor each; `env` is for whoever joins."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server((HEAD, 0)) as server:
            port = server.getsockname()[1]
        self.env = {
            **os.environ,
            "RAY_ADDRESS": f"{HEAD}:{port}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        started = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        as_head = ["--head", "--port", str(port), "--include-dashboard", "false"]
        as_head += ["--temp-dir", str(folder)]
        self.head = Node(HEAD, as_head, folder / "head.log", started)
        try:
            self.head.wait()
            joins = ["--address", f"{HEAD}:{port}"]
            self.node = Node(NODE, joins, folder / "node.log", started)
        except BaseException:
            self.head.kill()
            raise

    def end(self) -> None:
        self.node.kill()
        self.head.kill()


@contextmanager
def two_nodes(folder: Path) -> Iterator[Cluster]:
    """A cluster, up. Its folder's path must be short: sockets are in it."""
    cluster = Cluster(folder)
    try:
        cluster.node.wait()
        yield cluster
    finally:
        started = cluster.head.processes + cluster.node.processes
        cluster.end()
        for number in started:
            wait_for_end(number)


def offspring(number: int) -> list[int]:
    """The processes that one has started, and those that they have."""
    found: list[int] = []
    for file in Path("/proc").glob(f"{number}/task/*/children"):
        with suppress(OSError):  # a thread that has just ended
            for child in map(int, file.read_text().split()):
                found += [child, *offspring(child)]
    return found


def is_running(number: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def wait_for_end(number: int) -> None:
    until = time.monotonic() + START_SECONDS
    while is_running(number):
        assert time.monotonic() < until, f"process {number} runs on"
        time.sleep(0.02)
