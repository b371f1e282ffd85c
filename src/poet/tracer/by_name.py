"""Models by name: what one types, a name of the zoo with options or a function in a Python file.

`made_by_name` builds the model, `capture_named` captures its step, and `layout_named` finds the
captured step, without torch where it was captured before.
"""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from poet.errors import PoetError
from poet.rewrites.granularity import Granularity
from poet.tracer.capture import capture, capture_layout, imported_torch
from poet.values.optimizers import Optimizer

if TYPE_CHECKING:
    from poet.tracer.layout import Layout
    from poet.tracer.program import Program


class Made(NamedTuple):
    """What a name stands for. `data` are batches, where a user's file brings some."""

    model: Any
    example: Any
    loss: Any
    data: Any = None


def made_by_name(text: str, seed: int = 0) -> Made:
    """Model, example and loss of a zoo name with options, or of `file.py:function`."""
    return _from_file(text) if ".py:" in text else _from_zoo(text, seed)


def capture_named(
    text: str,
    optimizer: Optimizer | None = None,
    *,
    granularity: Granularity = "planning",
    fuse_updates: bool = False,
    cache: bool = True,
    seed: int = 0,
    on: str = "cpu",
) -> "Program":
    """The training step of a model by name. With `on="cuda"` it goes to the GPU first."""
    model, example, loss_fn, _ = made_by_name(text, seed)
    if on != "cpu":
        model, example = _moved(model, example, on)
    return capture(
        model,
        loss_fn,
        optimizer,
        example=example,
        granularity=granularity,
        fuse_updates=fuse_updates,
        name=text,
        cache=cache,
    )


def layout_named(
    text: str,
    optimizer: Optimizer | None = None,
    *,
    cache: bool = True,
) -> "Layout":
    """A model's step as it was captured. One of the zoo that is known is found without torch, and
    another is captured without bytes for its parameters."""
    key = None
    if cache and ".py:" not in text and _usual_settings():
        from poet.tracer import cache as kept
        from poet.tracer.versions import zoo_key
        from poet.zoo import parse

        key = zoo_key(parse(text).text, optimizer, text)
        known = kept.find(key)
        if known is not None:
            return known
    model, example, loss_fn, _ = shapes_by_name(text)
    try:
        traced = capture_layout(model, loss_fn, optimizer, example=example, name=text, cache=cache)
    except PoetError:  # a model that looks at numbers: let it, or say what is wrong with itself
        model, example, loss_fn, _ = made_by_name(text)
        traced = capture_layout(model, loss_fn, optimizer, example=example, name=text, cache=cache)
    if key is not None:
        kept.keep(key, traced)
    return traced


def shapes_by_name(text: str) -> Made:
    """The same as `made_by_name`, without bytes for what the zoo makes, where it can be made so."""
    if ".py:" in text:
        return _from_file(text)
    imported_torch()
    from poet.tracer.stand_ins import built_without_bytes

    return built_without_bytes(lambda: _from_zoo(text, 0)) or _from_zoo(text, 0)


def _moved(model: Any, example: Any, on: str) -> tuple[Any, Any]:
    torch = imported_torch()
    if on.startswith("cuda") and not torch.cuda.is_available():
        raise PoetError("torch finds no GPU here: it was built without CUDA, or there is none")

    def moved(leaf: Any) -> Any:
        return leaf.to(on) if isinstance(leaf, torch.Tensor) else leaf

    return model.to(on), torch.utils._pytree.tree_map(moved, example)


def _usual_settings() -> bool:
    if "torch" not in sys.modules:
        return True
    from poet.tracer.keys import settings_are_usual

    return settings_are_usual()


def _from_zoo(text: str, seed: int) -> Made:
    from poet.zoo import build

    made = build(text, seed)
    return Made(made.model, made.example, made.loss)


def _from_file(text: str) -> Made:
    """What `make()` in a user's file returns."""
    imported_torch()
    path, _, function = text.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise PoetError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"poet_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
        make = getattr(module, function, None)
        if not callable(make):
            here = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
            raise PoetError(
                f"{path} has no function {function!r}. It has {', '.join(sorted(here)) or 'none'}"
            )
        made = make()
    except PoetError:
        raise
    except Exception as error:
        raise PoetError(f"{text} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        what = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise PoetError(
            f"{text} returned {what}; it must return (model, example, loss), with loss None where "
            "the model returns its own, or (model, example, loss, data) with batches to train on"
        )
    return Made(*made)
