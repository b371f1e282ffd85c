"""Python state: what a forward pass changes besides tensors, where a trace cannot see it.

A trace runs the model's Python once and freezes what it did. A counter that goes up, a number drawn
from Python's random generator or a seed that is set would be the same in every step after, so they
are refused. Tensors that a forward pass leaves behind as attributes are put back as they were; one
that it reads before it leaves another in its place is state, and refused as well.

What only the first forward pass sets (the kind of loss that a model guesses, hooks that it
installs for itself) is left as that pass would leave it, if a second trace sets nothing more and
computes the same (`Traces.settled`).
"""

import contextlib
import random
import sys
from collections.abc import Collection, Iterator
from operator import is_
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from poet.errors import PoetError
from poet.tracer.keys import is_library
from poet.tracer.step import MODEL, Step
from poet.tracer.walking import GONE, walk
from poet.tracer.watch import Entry, Watch

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Before:
    """What a step's Python was before it was traced."""

    def __init__(self, step: Step) -> None:
        self._watch = Watch({"": step.model, "loss_fn": step.loss}, ambient=False)
        self._modules = dict(step.named_modules())
        self._attributes = {path: _attributes(module) for path, module in self._modules.items()}
        self._step = step
        self._state, self._draws = torch.get_rng_state(), _draws()

    def changed(self) -> Iterator[tuple[str, Any, Any]]:
        """Attributes that have another value than before: name, before, now."""
        for path, module in self._modules.items():
            if module is self._step:
                continue
            before, _ = self._attributes[path]
            for name, value in vars(module).items():
                if name in before and before[name] is not value:
                    yield _known(path, name), before[name], value

    def check(
        self, read: Collection[int], seeds: list[Any], assigned: Collection[tuple[int, str]]
    ) -> None:
        """Refuse what a step must not do: draw, seed, count, keep state that nobody sees.

        `read` are the storages of constants that it reads, `assigned` the modules, by id, and names
        of attributes that it set.
        """
        for name, before, now in self.changed():
            if _differs(before, now):
                raise PoetError(
                    f"the forward pass changes {name}, a Python value, which a captured step would "
                    "not do again. Make it a tensor in a buffer, or change it outside the step"
                )
        for path, module in self._modules.items():
            for name, before in self._attributes[path][0].items():
                if (id(module), name) not in assigned or not isinstance(before, torch.Tensor):
                    continue
                if _storage(before) in read:
                    raise PoetError(
                        f"the forward pass reads {_known(path, name)} and puts another tensor in "
                        "its place, which a captured step would not see. Make it a buffer with "
                        "register_buffer"
                    )
        for name, tensor in self._watch.trained_constants:
            if _storage(tensor) in read:
                raise PoetError(
                    f"the forward pass reads {name}, which requires a gradient and is no parameter "
                    "of the model, so that a captured step would give it none. Make it an "
                    "nn.Parameter, or read a detached one"
                )
        self.check_draws(seeds)
        self.put_attributes_back()
        what = self._watch.change_for_good()
        if what is not None:
            raise PoetError(
                f"the forward pass changes {what}, which a captured step would not do again. Do it "
                "outside the step"
            )

    def check_draws(self, seeds: list[Any]) -> None:
        """Refuse draws and seeds that the trace would freeze."""
        if self._draws != _draws():
            raise PoetError(
                "the forward pass draws from the random generator of Python or NumPy, whose number "
                "a captured step would repeat for ever. Draw with torch, or outside the step"
            )
        if seeds:
            raise PoetError(
                f"the forward pass calls torch.manual_seed({seeds[0]}), which a captured step "
                "would not do again. Do it outside the step"
            )

    def settled(self) -> list[Entry]:
        """What the forward pass has set once and for all, perhaps; none where tensors are in it."""
        found = list(self._watch.new_entries())
        return [] if any(_holds_traced(each.value) for each in found) else found

    def rewind(self) -> None:
        """As before the pass, while traced tensors stand in for parameters, and hooks listen."""
        for each in list(self._watch.new_entries()):
            ours = (getattr(each.value, "__module__", None) or "").startswith("poet.tracer.")
            if ours or isinstance(each.value, torch.Tensor):
                continue
            if each.was is GONE:
                del each.held[each.key]
            else:
                each.held[each.key] = each.was

    def names_of(self, assigned: Collection[tuple[int, str]]) -> tuple[str, ...]:
        """What people call these attributes of their own modules, but for buffers, which last."""
        return tuple(
            sorted(
                _known(path, name)
                for path, module in self._modules.items()
                for owner, name in assigned
                if owner == id(module)
                and not is_library(type(module).__module__)
                and name not in {*module._buffers, *module._parameters}
            )
        )

    @property
    def outside(self) -> tuple[str, ...]:
        """What the step asks the world for."""
        return self._watch.outside

    def put_back(self) -> None:
        """All as it was, as far as Python lets us: attributes, containers, random generators."""
        torch.set_rng_state(self._state)
        self.put_attributes_back()
        self._watch.put_back()

    def put_attributes_back(self) -> None:
        for path, module in self._modules.items():
            if module is not self._step:  # ours: it knows how far it came
                _put_back(module, *self._attributes[path])


class Traces:
    """What traces of a step do to its model, seen from outside."""

    def __init__(self, before: Before, seeds: list[Any], assigned: set[tuple[int, str]]) -> None:
        self._first = self._before = before
        self._seeds, self._assigned = seeds, assigned

    def check(self, read: Collection[int]) -> None:
        """Refuse what a captured step could not do again."""
        self._before.check(read, self._seeds, self._assigned)

    def rewind(self) -> None:
        """Before each pass of a trace, which makes several: all of them are to see the same."""
        self._before.rewind()

    def settled(self, step: Step) -> list[str]:
        """What the trace has set that a first forward pass of eager PyTorch would set, too.

        It stays as the trace has set it, and all else is as before: another trace shows whether
        it is set for good. The names are those that people know.
        """
        self._before.check_draws(self._seeds)
        found = self._before.settled()
        if found:
            self._before.put_back()
            for each in found:
                each.held[each.key] = each.value
            self._before = Before(step)
        return [each.name for each in found]

    def again(self) -> None:
        """Before another trace: the first has failed, and may have left things behind."""
        self.put_back()

    def put_back(self, success: bool = False) -> None:
        """All as it was; after a success, but for what was settled."""
        self._before.put_back()
        if not success:
            self._before = self._first
            self._first.put_back()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Attributes in which the forward pass leaves tensors for others to find."""
        return self._before.names_of(self._assigned)

    @property
    def outside(self) -> tuple[str, ...]:
        """What the step asks the world for."""
        return self._before.outside


@contextlib.contextmanager
def unchanged(step: Step) -> Iterator[Traces]:
    """Leave the model and the random generators as they were, whatever a trace does to them."""
    seeds, assigned = list[Any](), set[tuple[int, str]]()
    seed, assign = torch.manual_seed, nn.Module.__setattr__

    def assigning(module: nn.Module, name: str, value: Any) -> None:
        if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(value)):
            assigned.add((id(module), name))
        assign(module, name, value)

    setattr(torch, "manual_seed", seeds.append)  # noqa: B010
    setattr(nn.Module, "__setattr__", assigning)  # noqa: B010
    try:
        # As it is now, listened to: what puts it back goes on listening.
        traces = Traces(Before(step), seeds, assigned)
        step.rewind = traces.rewind
        try:
            yield traces
        except BaseException:
            traces.put_back()
            raise
        traces.put_back(success=True)
    finally:
        step.rewind = None
        setattr(torch, "manual_seed", seed)  # noqa: B010
        setattr(nn.Module, "__setattr__", assign)  # noqa: B010


def _attributes(module: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """All attributes, and what those hold that have tensors by name and change inside."""
    inner = {name: dict(getattr(module, name)) for name in ("_parameters", "_buffers")}
    return dict(vars(module)), inner


def _put_back(
    module: nn.Module, attributes: dict[str, Any], inner: dict[str, dict[str, Any]]
) -> None:
    """The very objects that were there: others may hold them."""
    for name in [name for name in vars(module) if name not in attributes]:
        del module.__dict__[name]
    module.__dict__.update(attributes)
    for name, held in inner.items():
        space = module.__dict__[name]
        if not all(map(is_, space.values(), held.values())) or len(space) != len(held):
            space.clear()
            space.update(held)


def _differs(before: Any, after: Any) -> bool:
    plain = isinstance(before, _PLAIN) and isinstance(after, _PLAIN)
    return plain and before is not None and (type(before), before) != (type(after), after)


def _draws() -> list[Any]:
    numpy = sys.modules.get("numpy")
    found: list[Any] = [random.getstate()]
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        found += [name, keys.tobytes(), rest]
    return found


def _holds_traced(value: Any) -> bool:
    """Whether a tensor of a trace can be reached from here."""
    return any(isinstance(each, FakeTensor | FunctionalTensor) for each in walk({"": value}).held)


def _known(path: str, name: str) -> str:
    """What people call an attribute of a part of the step."""
    return f"{path}.{name}".removeprefix(f"{MODEL}.")


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
