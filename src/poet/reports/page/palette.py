"""The palette: what bytes and places are called and how they are painted, for every renderer.

The hues are Okabe and Ito's, which people with any kind of colour vision can tell apart; a pattern
goes with those whose brightness is near a neighbour's, so that a grey print can be read.
"""

from typing import Literal

import msgspec

from poet.values.graph import Role

MemoryKind = Role | Literal["workspace"]
TensorState = Literal["ram", "store", "both", "computing", "recomputing", "paging"]


class Paint(msgspec.Struct, frozen=True, kw_only=True):
    """A name for people, a colour on light and on dark ground, and a pattern in Plotly's words."""

    label: str
    light: str
    dark: str
    pattern: str = ""


KINDS: dict[MemoryKind, Paint] = {
    "parameter": Paint(label="parameters", light="#0072b2", dark="#2f8fcb"),
    "buffer": Paint(label="buffers", light="#7b6d8d", dark="#9c8fb0", pattern="|"),
    "optimizer_state": Paint(label="optimizer state", light="#b85f8f", dark="#cc79a7", pattern="."),
    "input": Paint(label="inputs", light="#e6d52e", dark="#e3d447"),
    "activation": Paint(label="activations", light="#7cc4ee", dark="#56b4e9"),
    "gradient": Paint(label="gradients", light="#d55e00", dark="#e8772e", pattern="/"),
    "output": Paint(label="outputs", light="#009e73", dark="#1fb88c"),
    "workspace": Paint(label="workspace", light="#b4b4b4", dark="#8c8c8c", pattern="x"),
}
"""Bottom of the stack first: what stays longest lies lowest."""

STATES: dict[TensorState, Paint] = {
    "ram": Paint(label="in RAM", light="#3b8fc4", dark="#2f8fcb"),
    "store": Paint(label="in the store", light="#f3dc9a", dark="#77682f"),
    "both": Paint(label="in both", light="#6fd0ae", dark="#8fe3c4", pattern="/"),
    "computing": Paint(label="being computed", light="#14202b", dark="#f4f6f8"),
    "recomputing": Paint(label="being recomputed", light="#d55e00", dark="#ff8a3d"),
    "paging": Paint(label="being paged", light="#a0478c", dark="#d98bc8", pattern="\\"),
}
"""A tensor that is in none of these is nowhere: the ground shows."""
