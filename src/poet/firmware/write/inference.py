"""Inference: the part of a planned step that makes what the model returns, and nothing else.

It is the beginning of the schedule, up to the op that makes the model's output, with the tensors at
the same addresses, so it needs no plan and no RAM of its own. Of that beginning stays what the
output needs: calls behind the loss, statistics, and pages that only the backward pass reads are
left out. Dropout's masks let all through and BatchNorm goes by its running statistics, where it has
some: `model.eval()`. What lasts from step to step is read, and never written.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import msgspec

from poet.calls.operands import Operand, Work
from poet.calls.pieces import planes
from poet.calls.pieces.ways import Part
from poet.calls.references import Reference
from poet.calls.sizes import ITEM_BYTES
from poet.firmware.place.lifetimes import Lifetimes, SeatedInstruction
from poet.values.graph import Answer, Graph, Tensor, Value
from poet.values.plan import Plan
from poet.values.schedule import PERSISTENT, Compute, PageIn, PageOut

Key = tuple[str, int, int]
"""A storage of the whole step: a tensor, or an inner value and its op."""


class NotInferred(Exception):
    """Why a step has no inference."""


class Output(NamedTuple):
    """A piece of a storage that the model returns."""

    answer: Answer
    storage: Operand
    is_on_card: bool

    @property
    def piece(self) -> Operand:
        return msgspec.structs.replace(
            self.storage, offset=self.answer.offset, shape=self.answer.shape,
            strides=self.answer.strides,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return prod(self.answer.shape) * ITEM_BYTES[self.storage.dtype]


class Stage(NamedTuple):
    """An instruction of the inference: of an op the calls that are made, by place among its works
    or, where it runs piece by piece, its parts, and what the model returns after each."""

    seated: SeatedInstruction
    works: Mapping[int, Work]
    parts: Mapping[int, Part]
    returned: Mapping[int, tuple[Output, ...]]


class Inference(NamedTuple):
    stages: tuple[Stage, ...]
    outputs: tuple[Output, ...]
    inputs: frozenset[int]
    """The tensors of the batch that it reads."""


def inference_of(plan: Plan, lives: Lifetimes) -> Inference:
    """The inference of a plan; `NotInferred` says why it has none."""
    answers = _answers(plan.graph)
    if not answers:
        raise NotInferred("what the model returns before its loss is not known")
    return _Slicing(plan, lives, answers).run()


def _answers(graph: Graph) -> dict[Key, tuple[Answer, ...]]:
    found: dict[Key, tuple[Answer, ...]] = {}
    for i, tensor in enumerate(graph.tensors):
        if tensor.answers:
            found["tensor", 0, i] = tensor.answers
    for k, op in enumerate(graph.ops):
        for n, value in enumerate(op.values):
            if value.answers:
                found["value", k, n] = value.answers
    places = sorted(answer.place for answers in found.values() for answer in answers)
    if places != list(range(len(places))):
        raise NotInferred("what the model returns is told in part only")
    for (key, k, n), answers in found.items():
        thing = graph.tensors[n] if key == "tensor" else graph.ops[k].values[n]
        for answer in answers:
            _check(thing, answer)
    return found


def _check(thing: Tensor | Value, answer: Answer) -> None:
    """A plan is a file: its answers lie inside of their storage."""
    if thing.dtype not in ITEM_BYTES or 0 in answer.shape:
        raise NotInferred("what the model returns has no bytes")
    pairs = zip(answer.shape, answer.strides, strict=True)
    beyond = answer.offset + sum((size - 1) * stride for size, stride in pairs) + 1
    if beyond * ITEM_BYTES[thing.dtype] > thing.nbytes:
        raise NotInferred("what the model returns lies outside of its tensor")


class _Slicing:
    def __init__(
        self, plan: Plan, lives: Lifetimes, answers: dict[Key, tuple[Answer, ...]]
    ) -> None:
        self.plan, self.graph, self.lives = plan, plan.graph, lives
        self.answers = answers
        self.wanted = set(answers)
        self.on_card: set[int] = set()
        """Tensors that must be in the store, though they do not start there."""
        self.outputs: list[Output] = []
        lasting = {i for i in lives.start if self.graph.tensors[i].role in PERSISTENT}
        self.lasting = {lives.start[i] for i in lasting}
        self.returned: set[Key] = set()
        self.paged_out = {s.tensor for s in plan.schedule if isinstance(s, PageOut)}

    def run(self) -> Inference:
        stages = []
        for seated in reversed(self.beginning()):
            step = seated.instruction
            if isinstance(step, Compute):
                stage = self.compute(seated, step)
                if stage.works or stage.parts:
                    self.on_card |= self.read_in_tiles(step)
                    stages.append(stage)
            elif isinstance(step, PageIn) and ("tensor", 0, step.tensor) in self.wanted:
                if step.tensor in self.paged_out:
                    self.on_card.add(step.tensor)
                stages.append(Stage(seated, {}, {}, {}))
            elif isinstance(step, PageOut) and step.tensor in self.on_card:
                self.wanted.add(("tensor", 0, step.tensor))
                stages.append(Stage(seated, {}, {}, {}))
        read = {n for key, _, n in self.wanted if key == "tensor"}
        batch = frozenset(i for i in self.graph.batch if i in read)
        outputs = sorted(self.outputs, key=lambda output: output.answer.place)
        return Inference(tuple(reversed(stages)), tuple(outputs), batch)

    def read_in_tiles(self, step: Compute) -> set[int]:
        """What an op reads from the store that a page-out before it puts there."""
        reads = self.plan.costs.ops[step.op][step.variant].reads
        wanted = {n for key, _, n in self.wanted if key == "tensor"}
        return {stream.tensor for stream in reads} & self.paged_out & wanted

    def beginning(self) -> list[SeatedInstruction]:
        """The schedule up to the op that makes the last of what is returned."""
        missing = set(self.answers)
        for at, seated in enumerate(self.lives.instructions):
            if isinstance(seated.instruction, Compute):
                k = seated.instruction.op
                for work in self.works(seated):
                    missing -= {_key(k, x.storage) for x in work.results if x is not None}
            if not missing:
                return self.lives.instructions[: at + 1]
        raise NotInferred("what the model returns is made by no op")

    def works(self, seated: SeatedInstruction) -> list[Work]:
        if seated.way is None:
            return seated.works
        return [part.work for part in seated.way.parts]

    def compute(self, seated: SeatedInstruction, step: Compute) -> Stage:
        k = step.op
        works: dict[int, Work] = {}
        parts: dict[int, Part] = {}
        returned: dict[int, tuple[Output, ...]] = {}
        for place, work in reversed(list(enumerate(self.works(seated)))):
            made = {_key(k, x.storage): x for x in work.results if x is not None}
            if not made.keys() & self.wanted:
                continue
            if self.graph.ops[k].phase != "forward":
                raise NotInferred("what the model returns is made with its gradients")
            if seated.way is None:
                works[place] = evaluated(work)
            else:
                parts[place] = _evaluated_part(seated.way.parts[place])
            self.check_writes(seated, evaluated(work))
            for key, whole in made.items():
                if key in self.answers and key not in self.returned:
                    self.returned.add(key)
                    returned[place] = (*returned.get(place, ()), *self.returns(seated, key, whole))
            self.wanted |= {_key(k, x.storage) for x in work.reads}
        return Stage(seated, dict(reversed(works.items())), dict(reversed(parts.items())), returned)

    def returns(self, seated: SeatedInstruction, key: Key, whole: Operand) -> tuple[Output, ...]:
        """What is returned of a storage that is whole now."""
        kind, _, _n = key
        is_on_card = False
        if seated.way is not None and whole.storage not in seated.blocks:
            is_on_card = kind == "tensor"
            if not is_on_card:
                raise NotInferred("what the model returns exists in tiles only")
        outputs = tuple(
            Output(answer, _from_start(whole), is_on_card) for answer in self.answers[key]
        )
        if is_on_card and not all(output.piece.is_dense for output in outputs):
            raise NotInferred("what the model returns is strided on the card")
        self.outputs += outputs
        return outputs

    def check_writes(self, seated: SeatedInstruction, work: Work) -> None:
        """What lasts is never written: the next step begins with it."""
        for x in work.results:
            if x is not None and seated.blocks.get(x.storage) in self.lasting:
                raise NotInferred("its forward pass changes what lasts from step to step")
            if x is not None and x.storage[0] == "tensor":
                tensor = self.graph.tensors[x.storage[1]]
                if tensor.becomes is not None and seated.way is not None:
                    raise NotInferred("its forward pass changes what lasts from step to step")


def _key(k: int, storage: Reference) -> Key:
    kind, n = storage
    return (kind, 0 if kind == "tensor" else k, n)


def _from_start(whole: Operand) -> Operand:
    return msgspec.structs.replace(whole, offset=0)


def _is_norm(work: Work) -> bool:
    return (
        work.family.startswith("aten._native_batch_norm_legit")
        and not work.family.endswith("no_training")
        and work.arguments.get("training", True)
        and work.arguments.get("running_mean") is not None
    )


def evaluated(work: Work) -> Work:
    """The call as `model.eval()` has it."""
    if work.kind == "poet.dropout_mask":  # of masks that keep all, each element is 1
        return msgspec.structs.replace(work, arguments={**work.arguments, "p": 0.0})
    if _is_norm(work):
        results = (work.results[0], *[None] * (len(work.results) - 1))
        arguments = {**work.arguments, "training": False}
        return msgspec.structs.replace(work, arguments=arguments, results=results)
    return work


def _evaluated_part(part: Part) -> Part:
    """The same for a part: what a norm of the batch would write stays unwritten."""
    work = part.work
    if work.family == planes.STATISTICS and work.arguments.get("running_mean") is not None:
        raise NotInferred("it has a BatchNorm that runs in parts of its planes")
    if not _is_norm(work) or part.space is None:
        return msgspec.structs.replace(part, work=evaluated(work))
    writes = (part.space.writes[0], *[None] * (len(work.results) - 1))
    space = msgspec.structs.replace(part.space, writes=writes)
    held = {
        name: msgspec.structs.replace(one, is_written=False, over=None)
        if name.startswith("running_")
        else one
        for name, one in part.held.items()
        if name not in map(str, range(1, len(work.results)))
    }
    return msgspec.structs.replace(part, work=evaluated(work), space=space, held=held)
