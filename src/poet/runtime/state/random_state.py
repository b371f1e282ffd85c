"""The state of the random generators that a step or a user's loop may draw from.

torch's on the CPU, and on CUDA where the model is there; Python's; NumPy's old global one, where
NumPy is loaded. As values for a JSON file, exact to the bit.
"""

import random
import sys
from typing import Any

import msgspec
import torch

from poet.errors import PoetError

_WORDS = 624
"""Of a Mersenne Twister."""


class NumpyState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    keys: bytes
    position: int
    has_gauss: int
    gauss: float

    def __post_init__(self) -> None:
        # NumPy takes any position, and would read beyond its keys.
        words, rest = divmod(len(self.keys), 4)
        if (words, rest, self.name) != (_WORDS, 0, "MT19937") or not 0 <= self.position <= _WORDS:
            raise ValueError("the random state of NumPy is none that its generator has")


class RandomState(msgspec.Struct, frozen=True, kw_only=True):
    torch_cpu: bytes
    torch_cuda: tuple[bytes, ...] = ()
    python_version: int
    python_words: tuple[int, ...]
    python_gauss: float | None
    numpy: NumpyState | None = None


def random_state(device: torch.device) -> RandomState:
    """The generators as they are now; CUDA's for a model on such a device."""
    version, words, gauss = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if device.type == "cuda" else []
    return RandomState(
        torch_cpu=_content(torch.get_rng_state()),
        torch_cuda=tuple(map(_content, cuda)),
        python_version=version,
        python_words=words,
        python_gauss=gauss,
        numpy=_numpy_state(sys.modules.get("numpy")),
    )


def set_random_state(state: RandomState) -> None:
    """Go back to it. What this process does not have, such as a GPU, is left out."""
    torch.set_rng_state(_tensor(state.torch_cpu))
    if state.torch_cuda and torch.cuda.device_count() == len(state.torch_cuda):
        torch.cuda.set_rng_state_all([_tensor(each) for each in state.torch_cuda])
    random.setstate((state.python_version, state.python_words, state.python_gauss))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and state.numpy is not None:
        numpy.random.set_state(_numpy_tuple(numpy, state.numpy))


def check_random_state(state: RandomState) -> None:
    """Refuse states that no generator has: tried on generators of nobody's."""
    try:
        torch.Generator().set_state(_tensor(state.torch_cpu))
        random.Random().setstate((state.python_version, state.python_words, state.python_gauss))
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and state.numpy is not None:
            numpy.random.RandomState().set_state(_numpy_tuple(numpy, state.numpy))
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise PoetError(f"its random state is none that a generator has: {error}") from None


def _numpy_tuple(numpy: Any, state: NumpyState) -> tuple[Any, ...]:
    keys = numpy.frombuffer(state.keys, dtype=numpy.uint32)
    return (state.name, keys, state.position, state.has_gauss, state.gauss)


def _numpy_state(numpy: Any) -> NumpyState | None:
    if numpy is None:
        return None
    name, keys, position, has_gauss, gauss = numpy.random.get_state()
    if name != "MT19937":  # somebody gave it another generator, whose state is not of this form
        return None
    return NumpyState(
        name=str(name),
        keys=keys.astype("uint32").tobytes(),
        position=int(position),
        has_gauss=int(has_gauss),
        gauss=float(gauss),
    )


def _content(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.tolist())


def _tensor(content: bytes) -> torch.Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)
