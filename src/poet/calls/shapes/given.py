"""What a rule is given, and what most rules ask."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from poet.calls.operands import Operand, Work

Shape = tuple[int, ...]


class Made(NamedTuple):
    """A result as it must be. Without a dtype, any that has a kernel will do."""

    shape: Shape
    dtype: str | None = "float32"


class Given:
    """A call's arguments, as its rule asks for them."""

    def __init__(self, work: Work) -> None:
        self.work, self.arguments = work, work.arguments

    def __getitem__(self, name: str) -> Operand:
        found = self.arguments.get(name)
        if not isinstance(found, Operand):
            raise ValueError(f"its argument {name} is not a tensor")
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = self.arguments.get(name)
        return default if found is None else found

    def operands(self, *names: str) -> list[Operand]:
        """Those of the arguments that are tensors and not numbers, or nothing."""
        return [x for name in names if isinstance(x := self.arguments.get(name), Operand)]

    def pair(self, name: str, default: Any = None) -> tuple[int, int]:
        found = self.get(name, default)
        found = default if found == [] else found
        if not isinstance(found, int) and len(found) > 2:
            raise ValueError(f"{name} is {found}, not two numbers")
        return (found, found) if isinstance(found, int) else (found[0], found[-1])

    def must(self, name: str, shape: Shape) -> None:
        """An argument, where it is there, has this shape."""
        for operand in self.operands(name):
            if operand.shape != shape:
                raise ValueError(f"{name} is {list(operand.shape)}, not {list(shape)}")

    def dim(self, name: str, rank: int, default: int | None = None) -> int:
        return checked_dim(self.get(name, default), rank)


Rule = Callable[[Given], Iterable[Made | None]]


def checked_dim(dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise ValueError(f"dimension {dim} of {rank}")
    return dim % rank


def broadcast(operands: Iterable[Operand]) -> Shape:
    shapes = [operand.shape for operand in operands]
    rank = max(map(len, shapes), default=0)
    found = []
    for extents in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {extent for extent in extents if extent != 1}
        if len(wide) > 1:
            raise ValueError(f"shapes {' and '.join(str(list(shape)) for shape in shapes)}")
        found.append(wide.pop() if wide else 1)
    return tuple(found)


def size_of(given: Given, name: str = "size") -> Shape:
    found = tuple(given.arguments[name])
    if min((0, *found)) < 0:
        raise ValueError(f"{name} is {list(found)}")
    return found
