"""Graph: what one training step must compute.

A `Tensor` is a storage, written once. An `Op` makes tensors from tensors. A `Graph` lists the ops
in a topological order; ids are positions in its two tuples, names are for people and may repeat.

A graph checks itself when it is made, so everyone who holds one may rely on it: ids exist, each
tensor has at most one producer, an op reads only what was there before it, and nobody reads a
tensor after the op that consumes it. This module knows nothing of devices, costs or schedules.
"""

import hashlib
from functools import cached_property
from math import inf
from typing import Any, Literal, Protocol

import msgspec

from poet.values.call_checks import check_calls, check_words
from poet.values.graph_checks import check_ids, check_order, check_pairs, check_successors

Role = Literal[
    "input", "parameter", "buffer", "activation", "gradient", "optimizer_state", "output"
]
Phase = Literal["forward", "backward", "update"]

MAX_BYTES = 2**53 - 1
"""The largest size POET handles: the largest integer that every JSON reader keeps exact."""
JsonReference = dict[str, int]
"""`{"tensor": 5}`, a tensor of the graph, or `{"value": 2}`, an inner value of an op."""


def printable(name: str) -> str:
    """A name from a file, safe to show: control characters are escaped."""
    return name if name.isprintable() else name.encode("unicode_escape").decode()


def check_range(field: str, value: float, most: float = inf) -> None:
    """Refuse a number that is negative, not finite, or more than `most`."""
    if not (0 <= value <= most and value < inf):
        bound = "finite and 0 or more" if most == inf else f"from 0 to {most:g}"
        raise ValueError(f"{field} is {str(value)[:24]}; it must be {bound}")


def _check_shape(shape: tuple[int, ...]) -> None:
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape is {list(shape)}; extents cannot be negative")


class Answer(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the model returns before its loss, as a piece of a storage; strides, offset in elements.

    `place` is its number among the things that the model returns. Nothing is computed otherwise
    for it: it is there for who wants the forward pass alone.
    """

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        check_range("place", self.place, MAX_BYTES)
        check_range("offset", self.offset, MAX_BYTES)
        _check_shape(self.shape)
        if len(self.shape) != len(self.strides) or any(stride < 0 for stride in self.strides):
            raise ValueError(f"an answer of {list(self.shape)} has strides {list(self.strides)}")


class Tensor(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A storage and its value. Views of one storage are one tensor.

    `becomes` names the tensor that takes this one's value when the next step starts (an updated
    parameter becomes the old one); the two share one slot in the store. `strides`, in elements, are
    given where the elements do not lie in row-major order.
    """

    name: str
    nbytes: int
    role: Role = "activation"
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    strides: tuple[int, ...] | None = None
    becomes: int | None = None
    answers: tuple[Answer, ...] = ()

    def __post_init__(self) -> None:
        check_range("nbytes", self.nbytes, MAX_BYTES)
        if self.shape is not None:
            _check_shape(self.shape)


class InPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`output` takes over the bytes of `input`, which is consumed: in RAM and in the store."""

    output: int
    input: int


class Value(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An inner result of an op, which nobody outside it sees: `{"value": n}` in its calls.

    `nbytes` is what its storage takes while the op runs; a view of something else, `view_of`, takes
    none. A view of `{"tensor": 5}` or `{"value": 2}` keeps that alive as long as it is used.
    """

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    view_of: JsonReference | None = None
    answers: tuple[Answer, ...] = ()

    def __post_init__(self) -> None:
        check_range("nbytes", self.nbytes, MAX_BYTES)
        _check_shape(self.shape)
        if self.view_of is None:
            return
        if self.nbytes:
            raise ValueError(f"a view takes no bytes of its own; this one says {self.nbytes}")
        if len(self.view_of) != 1 or not self.view_of.keys() <= {"tensor", "value"}:
            raise ValueError(f"view_of is {self.view_of}; it must name a tensor or a value")


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call an op is made of: its kind (`aten.convolution`), arguments by name, and results.

    Arguments are plain JSON. A one-key object stands for what JSON lacks: `{"tensor": 5}` an input
    or output of the op, `{"value": 0}` an inner result of an earlier call of the same op,
    `{"float": "-inf"}` a number that is not finite, `{"dtype": "float32"}` an element type;
    `device`, `layout` and `memory_format` are tagged like a dtype. The parameter `{"tensor": 7}` of
    a scalar argument (a learning rate) stands for that tensor's one element. Results are
    `{"tensor": id}`, `{"value": n}`, or null where the call gives nothing.
    """

    kind: str
    arguments: dict[str, Any] = {}
    results: tuple[JsonReference | None, ...] = ()

    def __post_init__(self) -> None:
        check_words(self)

    @property
    def family(self) -> str:
        """The kind without its overload: `aten.add` of `aten.add.Tensor`."""
        return ".".join(self.kind.split(".", 2)[:2])


class Op(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A unit of computation: reads `inputs`, makes `outputs`.

    `recomputable` is true of every op that gives the same bits when it runs again (random ops do,
    with their state saved) and false of updates and side effects. An op lists each input once.
    `random_state_bytes` is the size of the generator state that must be saved before a random op
    runs and set before it runs again; 0 for all others. `values` are the inner results of its
    calls.
    """

    name: str
    phase: Phase = "forward"
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...]
    in_place: tuple[InPlace, ...] = ()
    recomputable: bool = True
    random_state_bytes: int = 0
    values: tuple[Value, ...] = ()
    calls: tuple[Call, ...] = ()

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ValueError(f"op {self.name!r} has no outputs")
        check_range("random_state_bytes", self.random_state_bytes, MAX_BYTES)
        for field in ("inputs", "outputs"):
            ids = getattr(self, field)
            if len(set(ids)) != len(ids):
                raise ValueError(f"op {self.name!r} lists a tensor twice in {field}: {list(ids)}")
        taken = [pair.input for pair in self.in_place]
        given = [pair.output for pair in self.in_place]
        if len(set(taken)) != len(taken) or len(set(given)) != len(given):
            raise ValueError(f"op {self.name!r} uses a tensor in two in_place pairs")
        if not set(taken) <= set(self.inputs) or not set(given) <= set(self.outputs):
            raise ValueError(
                f"op {self.name!r} has an in_place pair that is not one of its outputs "
                "over one of its inputs"
            )
        check_calls(self)

    @property
    def consumed(self) -> tuple[int, ...]:
        """The inputs that no longer exist after this op."""
        return tuple(pair.input for pair in self.in_place)


class HasGraph(Protocol):
    """A program, or whatever else carries a graph."""

    @property
    def graph(self) -> "Graph": ...


class Graph(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    dict=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-graph/1",
):
    """Ops in a topological order, and the tensors between them."""

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        if not self.ops:
            raise ValueError("the graph has no ops")
        check_ids(self)
        check_order(self)
        check_pairs(self)
        check_successors(self)

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """For each tensor the op that makes it, or None if it exists when the step starts."""
        makers: list[int | None] = [None] * len(self.tensors)
        for k, op in enumerate(self.ops):
            for i in op.outputs:
                makers[i] = k
        return tuple(makers)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the ops that read it, in order."""
        reading: list[list[int]] = [[] for _ in self.tensors]
        for k, op in enumerate(self.ops):
            for i in op.inputs:
                reading[i].append(k)
        return tuple(map(tuple, reading))

    @cached_property
    def consumer(self) -> tuple[int | None, ...]:
        """For each tensor the op that consumes it, which is the last to read it, or None."""
        consumers: list[int | None] = [None] * len(self.tensors)
        for k, op in enumerate(self.ops):
            for i in op.consumed:
                consumers[i] = k
        return tuple(consumers)

    @cached_property
    def heir(self) -> dict[int, int]:
        """For tensors that exist when the step starts, the one that becomes it, if any does."""
        return {t.becomes: i for i, t in enumerate(self.tensors) if t.becomes is not None}

    @cached_property
    def slot(self) -> tuple[int, ...]:
        """For each tensor the slot it has in the store: its own, or that of what it becomes."""
        return tuple(i if t.becomes is None else t.becomes for i, t in enumerate(self.tensors))

    @cached_property
    def given(self) -> tuple[int, ...]:
        """The tensors that exist when the step starts."""
        return tuple(i for i, maker in enumerate(self.producer) if maker is None)

    @cached_property
    def batch(self) -> tuple[int, ...]:
        """Those of them that a step is given as inputs."""
        return tuple(i for i in self.given if self.tensors[i].role == "input")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that is computed. Names do not count: they are for people."""
        anonymous = (
            [msgspec.structs.replace(tensor, name="", answers=()) for tensor in self.tensors],
            [
                msgspec.structs.replace(op, name="", values=tuple(map(_unanswered, op.values)))
                for op in self.ops
            ],
        )
        return hashlib.sha256(msgspec.json.encode(anonymous, order="sorted")).hexdigest()[:32]

    def tensor_text(self, i: int) -> str:
        """A tensor as people should see it in a message: `tensor 5 (conv1.out)`."""
        return f"tensor {i} ({printable(self.tensors[i].name)})"

    def op_text(self, k: int) -> str:
        """An op as people should see it in a message: `op 12 (conv1, backward)`."""
        return f"op {k} ({printable(self.ops[k].name)}, {self.ops[k].phase})"


def _unanswered(value: Value) -> Value:
    return msgspec.structs.replace(value, answers=()) if value.answers else value


def graph_of(given: "Graph | HasGraph") -> Graph:
    """What takes a graph takes a program, too."""
    return given if isinstance(given, Graph) else given.graph


def alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs differ in nothing but names and the numbers that their calls are given."""
    if len(one.ops) != len(other.ops) or len(one.tensors) != len(other.tensors):
        return False
    replace = msgspec.structs.replace
    return all(
        replace(a, name="") == replace(b, name="")
        for a, b in zip(one.tensors, other.tensors, strict=True)
    ) and all(
        replace(a, name="", calls=()) == replace(b, name="", calls=())
        and len(a.calls) == len(b.calls)
        and all(map(_alike_calls, a.calls, b.calls))
        for a, b in zip(one.ops, other.ops, strict=True)
    )


def _alike_calls(one: Call, other: Call) -> bool:
    def others(call: Call) -> dict[str, Any]:
        return {name: x for name, x in call.arguments.items() if not isinstance(x, float)}

    return (one.kind, one.results, one.arguments.keys(), others(one)) == (
        (other.kind, other.results, other.arguments.keys(), others(other))
    )
