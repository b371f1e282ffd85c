"""Pass: a step between its forward and its backward pass, while the loop is the user's.

The tape stops where its outputs are there, and hands them out; it goes on with their gradients. In
between the user may change tensors that the backward pass still reads. Autograd would notice by
their version counters, and so does this.

Several passes of a model may wait at once. What each holds beside the model's own tensors counts
for all others (`held_bytes`, `beside`), and one that is in their way gives its tensors up: it can
then only run again, from its inputs, its random state and the buffers that it found.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from poet.calls.references import references
from poet.errors import PoetError
from poet.runtime.step.machine import Machine
from poet.runtime.step.tape import Tape
from poet.tracer.layout import Piece
from poet.tracer.program import Program
from poet.values.graph import Call
from poet.values.plan import Plan
from poet.values.schedule import Compute

_CHANGEABLE = ("input", "parameter", "buffer")
"""Roles of tensors that are the user's between the passes."""
_VERSION: Callable[[torch.Tensor], int] = attrgetter("_version")


class Gradients(NamedTuple):
    """What a backward pass gives, by parameter and by the input's place in the call."""

    parameters: dict[str, torch.Tensor]
    inputs: dict[int, torch.Tensor]


class _Watched:
    """Tensors that the user may change, and their versions when the step last had them."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.numbers, self.tensors = list(tensors), list(tensors.values())
        self._versions = self._now()

    def add(self, number: int, tensor: torch.Tensor) -> None:
        self.numbers.append(number)
        self.tensors.append(tensor)
        self._versions.append(tensor._version)

    def changed(self) -> list[int]:
        """The places of those that were changed since."""
        now = self._now()
        if now == self._versions:
            return []
        versions = zip(self._versions, now, strict=True)
        return [place for place, (then, now) in enumerate(versions) if then != now]

    def accept(self, places: Iterable[int]) -> None:
        """Those are to stay as they are now."""
        for place in places:
            self._versions[place] = self.tensors[place]._version

    def _now(self) -> list[int]:
        return list(map(_VERSION, self.tensors))


class Foreknown(NamedTuple):
    """What is the same for every pass by a plan."""

    late: frozenset[int]
    """The tensors that the schedule reads after the outputs are handed out."""
    truly_late: frozenset[int]
    """Without those that a kernel is given and does not look at."""
    changeable: tuple[int, ...]
    """Those in RAM at the start that are the user's between the passes."""
    models: tuple[int, ...]
    """Those of them that are the model's own."""


class Pass:
    """One step, from its forward pass to its backward pass."""

    def __init__(
        self,
        program: Program,
        known: Foreknown,
        machine: Machine,
        tape: Tape,
        given: dict[int, torch.Tensor],
        beside_bytes: int = 0,
        ended: Callable[[Machine], None] = lambda _: None,
    ) -> None:
        self._ended = ended
        self.program, self.machine = program, machine
        self._known = known
        self._moved_on: set[int] = set()
        self._beside_bytes = beside_bytes
        self._models_bytes = machine.bytes_of(known.models)
        self._input_bytes = machine.bytes_of(program.layout.inputs.values())
        self._old_buffers: dict[str, torch.Tensor] | None = None
        self._watched = _Watched(
            {i: given[i] for i in known.changeable if not given[i].is_inference()}
        )
        self.random_state = machine.random_state()
        self.is_waiting = True
        self._tape: Generator[Any, Any, Any] = tape.run(machine, given)
        self._made: dict[int, torch.Tensor] = self._advance(None)
        heirs = program.graph.heir  # new values are by now where the model has its buffers
        numbers = self._watched.numbers
        self._watched.accept(place for place, i in enumerate(numbers) if i in heirs)
        self._watched.numbers = [heirs.get(i, i) for i in numbers]

    def hand_out(self) -> list[torch.Tensor]:
        """The model's outputs."""
        return [_seen(self._made[piece.tensor], piece) for piece in self.program.layout.pieces]

    def watch(self, outputs: Sequence[torch.Tensor]) -> None:
        """Notice changes of outputs that were handed out."""
        pieces = self.program.layout.pieces
        for piece, output in zip(pieces, outputs, strict=True):
            # Another tensor with the same counter: the output itself must be free to die.
            self._watched.add(piece.tensor, output.detach())

    @property
    def old_buffers(self) -> dict[str, torch.Tensor]:
        """The values that buffers had before the forward pass changed them."""
        if self._old_buffers is not None:
            return self._old_buffers
        buffers, heirs = self.program.layout.buffers, self.program.graph.heir
        return {name: self._made[i] for name, i in buffers.items() if i in heirs}

    @property
    def output_bytes(self) -> int:
        """What the outputs take that were handed out."""
        tensors = self.program.graph.tensors
        return sum(tensors[i].nbytes for i in set(self.program.layout.outputs))

    @property
    def held_bytes(self) -> int:
        """What it holds in RAM beside the model's own tensors."""
        if self.has_given_up:
            return self.least_bytes
        return self.machine.live_bytes - self._beside_bytes - self._models_bytes

    @property
    def least_bytes(self) -> int:
        """What it goes on holding when it gives up: what is the loop's, and old buffers."""
        old = (each.untyped_storage().nbytes() for each in self.old_buffers.values())
        return self._input_bytes + self.output_bytes + sum(old)

    @property
    def has_given_up(self) -> bool:
        """Whether it can only run again."""
        return self._old_buffers is not None

    @property
    def needs_to_run_again(self) -> bool:
        """Whether it has given up, or needs buffers as only it has left them."""
        return self.has_given_up or bool(self._moved_on & self._known.truly_late)

    def beside(self, nbytes: int) -> None:
        """So many bytes of the budget are taken by somebody else from now on."""
        self.machine.hold(nbytes - self._beside_bytes)
        self._beside_bytes = nbytes

    @contextlib.contextmanager
    def while_buffers_move_on(self) -> Iterator[None]:
        """Another pass changes buffers meanwhile, which is no change by the user."""
        heirs = frozenset(self.program.graph.heir.values())
        watched, before = self._watched, frozenset(self._watched.changed())
        try:
            yield
        finally:
            moved = [
                place
                for place in watched.changed()
                if watched.numbers[place] in heirs and place not in before
            ]
            self._moved_on |= {watched.numbers[place] for place in moved}
            watched.accept(moved)

    def give_up(self) -> None:
        """Let go of all that is not needed to run again."""
        self._old_buffers = self.old_buffers
        self._tape.close()
        self.machine.finish()
        self._made = {}

    def check_unchanged(self, again: bool = False) -> None:
        """Refuse to go on, or to run the forward pass `again`, with what has changed since."""
        changed = self._watched.changed()
        if not changed:
            return
        pieces = [piece.tensor for piece in self.program.layout.pieces]
        late = self._known.late | {i for i in pieces if pieces.count(i) > 1}
        outputs = frozenset(pieces)
        for place in changed:
            i, shape = self._watched.numbers[place], list(self._watched.tensors[place].shape)
            if i in late or (again and i not in outputs):
                raise PoetError(
                    f"{self.program.graph.tensors[i].name} was changed in place since the forward "
                    f"pass (it is of shape {shape}), and the backward pass needs it as it was. "
                    "Change it after backward, or change a copy"
                )

    def go_on(self, gradients: Sequence[torch.Tensor | None]) -> Gradients:
        """The backward pass: gradients of the outputs in, those of parameters and inputs out."""
        self.check_unchanged()
        self.is_waiting = False
        program = self.program
        tangents = {}
        for place, i in program.layout.tangents.items():
            about, given = program.graph.tensors[i], gradients[place]
            assert given is not None
            strides = about.strides or torch.empty(given.shape, device="meta").stride()
            if given.stride() != strides:
                laid_out = torch.empty_strided(
                    given.shape, strides, dtype=given.dtype, device=given.device
                )
                if 0 not in given.stride():  # autograd keeps it beside the copy
                    self.machine.hold(given.untyped_storage().nbytes())
                given = laid_out.copy_(given)
            tangents[i] = given
        self._made, self._watched = {}, _Watched({})
        made = self._advance(tangents)
        self.machine.finish()
        self._ended(self.machine)
        pieces = program.layout.input_gradients
        return Gradients(
            program.gradients(made.get),
            {place: _seen(made[piece.tensor], piece) for place, piece in pieces.items()},
        )

    def abandon(self) -> None:
        """No backward pass will come."""
        self.is_waiting = False
        self._tape.close()
        self.machine.finish()
        self._made, self._watched = {}, _Watched({})

    def _advance(self, tangents: Mapping[int, torch.Tensor] | None) -> dict[int, torch.Tensor]:
        before = torch.is_grad_enabled()
        try:
            with torch.autocast(self.program.model_device.type, enabled=False):
                made: dict[int, torch.Tensor] = self._tape.send(tangents)
                return made
        except StopIteration as done:
            found: dict[int, torch.Tensor] = done.value
            return found
        except BaseException:
            self.is_waiting = False
            self.machine.finish()
            raise
        finally:
            torch._C._set_grad_enabled(before)


def foreknown(plan: Plan) -> Foreknown:
    """What is the same for every pass by this plan."""
    graph = plan.graph
    runs = [graph.ops[step.op] for step in plan.schedule if isinstance(step, Compute)]
    handed_out = next(k for k, op in enumerate(runs) if op.calls[0].kind == "poet.tangent")
    late = runs[handed_out + 1 :]
    read = (each for op in late for call in op.calls for each in _looked_at(call))
    here = [i for i, place in plan.budget.start.items() if place != "store"]
    changeable = [i for i in here if graph.tensors[i].role in _CHANGEABLE]
    return Foreknown(
        late=frozenset(i for op in late for i in op.inputs),
        truly_late=frozenset(i for tag, i in read if tag == "tensor"),
        changeable=tuple(changeable),
        models=tuple(i for i in changeable if graph.tensors[i].role != "input"),
    )


def _looked_at(call: Call) -> Iterator[Any]:
    """What a call refers to, but for running statistics where those of the batch are used."""
    is_of_batch = any(call.arguments.get(name) is True for name in ("train", "update"))
    for name, each in references(call):
        if not (is_of_batch and "batch_norm_backward" in call.kind and name.startswith("running")):
            yield each


def _seen(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """A tensor of its own, not a view in autograd's eyes, on the same storage."""
    blank = torch.empty(0, dtype=getattr(torch, piece.dtype), device=tensor.device)
    return blank.set_(tensor.untyped_storage(), piece.offset, piece.shape, piece.strides)
