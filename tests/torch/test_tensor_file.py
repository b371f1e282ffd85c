"""Files of tensors, streamed, against the safetensors library; and random states as values."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poet.runtime.state.checkpoints import write_weights
from poet.runtime.state.random_state import random_state, set_random_state
from poet.runtime.state.tensor_file import (
    CHUNK_BYTES,
    Item,
    TensorPlace,
    TornFile,
    _header,
    fill,
    kind_of,
    verify,
)

DTYPES = sorted(safetensors.torch._TYPES.values(), key=str)


def item(tensor: torch.Tensor) -> Item:
    class Present:
        def __enter__(self) -> torch.Tensor:
            return tensor

        def __exit__(self, *_: object) -> None:
            pass

    return Item(kind_of(tensor), Present)


def noise(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel() * dtype.itemsize
    content = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=draw)
    if dtype == torch.bool:
        content %= 2
    return content.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


def content(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    return tensor.dtype, tensor.shape, bytes(flat.view(torch.uint8).tolist()) if len(flat) else b""


def places_in(path: Path) -> dict[str, TensorPlace]:
    """Of a file that has no checksum."""
    with open(path, "rb") as file:
        return _header(file)[0].places


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.T.contiguous().T if tensor.ndim == 2 else tensor,
    "a slice": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 5), max_size=3).map(tuple),
            st.sampled_from(sorted(LAYOUTS)),
        ),
        max_size=6,
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_files_as_the_library_writes_and_reads_them(
    tmp_path_factory: pytest.TempPathFactory, kinds: Any, metadata: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("format")
    tensors = {
        f"t{n} é\n": LAYOUTS[layout](noise(dtype, shape, n))
        for n, (dtype, shape, layout) in enumerate(kinds)
    }
    ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"
    write_weights(ours, {name: item(tensor) for name, tensor in tensors.items()})
    read = safetensors.torch.load_file(ours)
    assert {name: content(tensor) for name, tensor in read.items()} == {
        name: content(tensor) for name, tensor in tensors.items()
    }
    metadata = {name: text for name, text in metadata.items() if name != "checksum"}
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    # Of no tensors and some metadata, the library makes a file that it cannot read itself.
    safetensors.torch.save_file(plain, theirs, metadata if plain else None)
    with pytest.raises(TornFile, match="no checksum"):
        verify(theirs)
    for path, places in ((ours, verify(ours).places), (theirs, places_in(theirs))):
        back = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        fill(path, [(places[name], item(tensor).present) for name, tensor in back.items()])
        assert all(content(back[name]) == content(tensors[name]) for name in tensors)


def test_files_of_the_library_can_be_filled_from(tmp_path: Path) -> None:
    """Also in pieces, where a tensor is large and its elements lie in another order."""
    rows = CHUNK_BYTES // 400
    tensors = {
        "large": noise(torch.float32, (rows + 7, 100), 0),
        "wide": noise(torch.int16, (3, CHUNK_BYTES), 1),
        "small": noise(torch.bfloat16, (), 2),
    }
    safetensors.torch.save_file(tensors, tmp_path / "theirs.safetensors")
    places = places_in(tmp_path / "theirs.safetensors")
    back = {
        "large": torch.empty(100, rows + 7).T,
        "wide": torch.empty(CHUNK_BYTES, 3, dtype=torch.int16).T,
        "small": torch.empty((), dtype=torch.bfloat16),
    }
    fill(
        tmp_path / "theirs.safetensors",
        [(places[name], item(tensor).present) for name, tensor in back.items()],
    )
    assert all(content(back[name]) == content(tensors[name]) for name in tensors)
    expanded = torch.zeros(1, 3).expand(4, 3)
    write_weights(tmp_path / "e.safetensors", {"e": item(torch.ones(1, 3).expand(4, 3))})
    (place,) = verify(tmp_path / "e.safetensors").places.values()
    fill(tmp_path / "e.safetensors", [(place, item(expanded).present)])
    assert bool((expanded == 1).all())


def test_random_states_come_back() -> None:
    def draw() -> list[Any]:
        return [torch.rand(3).tolist(), random.gauss(0, 1), random.random(), np.random.rand()]

    random.gauss(0, 1)  # one of a pair: the other is kept for the next call
    np.random.standard_normal()
    kept = msgspec.json.encode(random_state(torch.device("cpu")))
    first = draw()
    assert draw() != first
    set_random_state(msgspec.json.decode(kept, type=type(random_state(torch.device("cpu")))))
    assert draw() == first
