"""Ray: the questions of a sweep, answered by the cluster that RAY_ADDRESS names.

A task is one question and all that its answer needs, and nothing stays behind: whoever has it, and
however often, the answer is the same as on one machine, where work is counted. On its node it runs
in a worker process of POET's own, so that its limits and its end are those of a worker here. A task
that goes down with its node is asked again, a few times; one that Ray ends for its memory is not.

This is the one file that knows Ray.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from poet.errors import Infeasible, MissingPackage, PoetError
from poet.planning.executor import Executor, Limits
from poet.planning.rows import Shared, found_row
from poet.planning.turns import Outcome, Task, Turns
from poet.planning.workers import Work
from poet.version import __version__

_log = logging.getLogger(__name__)
ADDRESS = "RAY_ADDRESS"
TRIES = 5
"""So often a question is asked whose node, or whose worker of Ray, is lost."""
_CONNECT_SECONDS = 10.0
_WAIT_SECONDS = 1.0
_IN_FLIGHT = 2
"""Questions that are under way, for each processor of the cluster."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a question on its node."""

    found: bytes = b""
    lost: str = ""
    refused: str = ""
    proven: bool | None = None
    """Of what is `Infeasible`."""
    trace: str = ""


class _Sent(NamedTuple):
    """A question that is under way, as it would be sent again."""

    task: Task
    before: list[bytes]
    tries: int


class RayTeam:
    """A cluster that answers what is asked of `found_row`. A context manager."""

    def __init__(self, given: Shared, limits: Limits, threads: int) -> None:
        self._given, self._limits, self._threads = given, limits, threads
        self._work = Work(found_row)
        self._parts: dict[tuple[str, str], tuple[str, Any]] = {}
        self._under_way: dict[Any, _Sent] = {}

    def __enter__(self) -> Self:
        self._ray = _joined()
        options = {"num_cpus": self._threads, "max_retries": 0}
        self._answer = self._ray.remote(**options)(answer_here)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for reference in self._under_way:
            with suppress(Exception):  # its node is gone
                self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def run(
        self,
        tasks: Iterable[Task],
        known: Mapping[Any, Any] = {},
        *,
        began: Callable[[Task], None] = lambda task: None,
    ) -> Iterator[Outcome]:
        """What becomes of each question, as it comes."""
        turns = Turns(tasks, known)
        while True:
            while len(self._under_way) < self._most and (turn := turns.next()) is not None:
                began(turn[0])
                before = [msgspec.msgpack.encode(each) for each in turn[1]]
                self._send(_Sent(turn[0], before, 1))
            if not self._under_way:
                return
            there, _ = self._ray.wait(list(self._under_way), timeout=_WAIT_SECONDS)
            for reference in there:
                sent = self._under_way.pop(reference)
                outcome = self._outcome(reference, sent)
                if outcome is None:
                    self._send(sent._replace(tries=sent.tries + 1))
                    continue
                turns.ended(outcome)
                yield outcome

    @property
    def _most(self) -> int:
        processors = self._ray.cluster_resources().get("CPU", 1)
        return max(1, int(_IN_FLIGHT * processors / self._threads))

    def _send(self, sent: _Sent) -> None:
        ask = sent.task.asked
        digest, part = self._part(ask.step, ask.terms)
        limits = (self._limits.seconds, self._limits.ram_bytes)
        asked = msgspec.msgpack.encode(ask)
        reference = self._answer.remote(__version__, digest, part, asked, sent.before, *limits)
        self._under_way[reference] = sent

    def _part(self, step: str, terms: str) -> tuple[str, Any]:
        """What a question shares with others, put into the cluster once."""
        if (step, terms) not in self._parts:
            steps, its_terms = {step: self._given.steps[step]}, {terms: self._given.terms[terms]}
            part = msgspec.msgpack.encode(Shared(steps=steps, terms=its_terms))
            self._parts[step, terms] = sha256(part).hexdigest(), self._ray.put(part)
        return self._parts[step, terms]

    def _outcome(self, reference: Any, sent: _Sent) -> Outcome | None:
        """What became of a question; None where it must be asked again."""
        gone, key = self._ray.exceptions, sent.task.key
        try:
            reply = msgspec.msgpack.decode(self._ray.get(reference), type=Reply)
        except gone.OutOfMemoryError:
            return Outcome(key, lost="Ray ended it: its node's memory was at its end")
        except (
            gone.WorkerCrashedError,
            gone.NodeDiedError,
            gone.LocalRayletDiedError,
            gone.ObjectLostError,
            gone.ObjectFetchTimedOutError,
        ) as error:
            if sent.tries < TRIES:
                what, why = sent.task.what, type(error).__name__
                _log.warning("%s: its node or worker was lost (%s); asked again", what, why)
                return None
            return Outcome(
                key, lost=f"its node or worker was lost {TRIES} times ({type(error).__name__})"
            )
        except gone.RayError as error:
            raise _of_nodes(error) from None
        if reply.lost or reply.trace:
            return Outcome(key, lost=reply.lost, trace=reply.trace)
        if reply.refused:
            if reply.proven is None:
                return Outcome(key, error=PoetError(reply.refused))
            return Outcome(key, error=Infeasible(reply.refused, reply.proven))
        return Outcome(key, self._work.found.decode(reply.found))


def answer_here(
    version: str,
    digest: str,
    given: bytes,
    asked: bytes,
    before: list[bytes],
    seconds: float | None,
    ram_bytes: int | None,
) -> bytes:
    """What a node does with a question: hands it to a worker process, which is kept for the next
    question that shares what is given."""
    if version != __version__:
        raise PoetError(
            f"a node of the cluster has POET {__version__}, and {version} asks: install one version"
        )
    limits = Limits(1, seconds, ram_bytes)
    if digest not in _workers:
        end_workers()
        _workers[digest] = Executor(found_row, msgspec.Raw(given), limits)
    needs = tuple(range(len(before)))
    task = Task("", msgspec.Raw(asked), needs)
    known = {number: msgspec.Raw(answer) for number, answer in enumerate(before)}
    try:
        (outcome,) = _workers[digest].run([task], known)
    except BaseException:
        end_workers()
        raise
    return msgspec.msgpack.encode(_reply(outcome))


_workers: dict[str, Executor] = {}
"""At most one, in a process of Ray's; it ends when that does."""


def end_workers() -> None:
    """End what a node keeps for its next question."""
    while _workers:
        _workers.popitem()[1].end()


def _reply(outcome: Outcome) -> Reply:
    if outcome.error is not None:
        return Reply(refused=str(outcome.error), proven=getattr(outcome.error, "proven", None))
    if outcome.lost or outcome.trace:
        return Reply(lost=outcome.lost, trace=outcome.trace)
    return Reply(found=msgspec.msgpack.encode(outcome.found))


def _joined() -> Any:
    """Ray, once the cluster is joined."""
    address = os.environ.get(ADDRESS)
    if not address:
        raise PoetError(
            f"there is no Ray cluster to join: {ADDRESS} is not set. Set it to the address of one, "
            f"as {ADDRESS}=HOST:6379, or hand the command to `ray job submit`, which sets it. "
            "Without --ray the workers of this machine answer"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingPackage("a sweep on a cluster", "ray") from None
    _check_somebody_answers(address)
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise PoetError(f"cannot join the Ray cluster at {address}: {error}") from None
    return ray


def _check_somebody_answers(address: str) -> None:
    """Ray itself would wait for a minute, and then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise PoetError(
            f"there is no Ray cluster at {address}, which {ADDRESS} names: {why}"
        ) from None


def _of_nodes(error: Exception) -> Exception:
    """An error that is one of all nodes, or a bug, in words."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, PoetError):
        return PoetError(str(cause))
    if "No module named 'poet'" in str(error):
        return PoetError(f"a node of the cluster has no POET: install version {__version__} there")
    return RuntimeError(f"a task failed on the cluster:\n{error}")
