"""What the library must know of a network: `network.h` for people, and the tables of step.c."""

from collections.abc import Mapping
from math import prod

from poet.calls.updates import SCALARS
from poet.firmware.card.layout import CardLayout, inputs_of, lasting, scalars
from poet.firmware.card.sectors import HELD, SECTOR
from poet.firmware.card.upkeep import commits, shares
from poet.firmware.place.arena import Placement
from poet.firmware.place.lifetimes import Lifetimes
from poet.firmware.write.flash import First
from poet.firmware.write.inference import Inference
from poet.firmware.write.text import comment
from poet.values.plan import Plan

NOWHERE = "POET_NOWHERE"
_PLACES = (
    "copy_at", "copy_sectors", "shared_sectors", "rows_at", "row_sectors", "pages_at",
    "page_sectors", "journal_at", "journal_entries",
)  # fmt: skip
"""What the library knows of the card's layout."""


class Network:
    def __init__(
        self, plan: Plan, lives: Lifetimes, placement: Placement, card: CardLayout,
        inference: Inference | None, save_every: int, firsts: Mapping[int, First],
    ) -> None:  # fmt: skip
        self.plan, self.graph, self.lives = plan, plan.graph, lives
        self.placement, self.card, self.inference = placement, card, inference
        self.save_every, self.firsts = save_every, firsts
        self.inputs = inputs_of(plan.graph)
        self.weights = lasting(plan.graph)

    # ---- network.h ----

    def header(self, no_inference: str) -> str:
        out = [
            f"/* What goes into {comment(self.graph.name)}, and what comes out. */",
            "#ifndef POET_NETWORK_H",
            "#define POET_NETWORK_H",
            "",
            f"#define POET_INPUTS {len(self.inputs)}",
        ]
        for n, i in enumerate(self.inputs):
            tensor = self.graph.tensors[i]
            infers = self.inference is not None and i in self.inference.inputs
            out.append(f"/* {comment(tensor.name)}: {_shape(tensor.dtype, tensor.shape)} */")
            out.append(f"#define POET_INPUT_{n}_BYTES {tensor.nbytes}u")
            out.append(f"#define POET_INPUT_{n}_INFERS {int(infers)}")
        outputs = () if self.inference is None else self.inference.outputs
        if self.inference is None:
            out += ["", f"/* There is no inference: {comment(no_inference)}. */"]
        out += ["", f"#define POET_OUTPUTS {len(outputs)}"]
        for n, output in enumerate(outputs):
            out.append(f"/* {_shape(output.storage.dtype, output.answer.shape)} */")
            out.append(f"#define POET_OUTPUT_{n}_BYTES {output.nbytes}u")
        nbytes = self.card.data_at // HELD * SECTOR
        out += ["", f"#define POET_STORE_BYTES {nbytes}u /* of the store, without samples */"]
        out += ["", f"#define POET_WEIGHTS {len(self.weights)}"]
        for n, i in enumerate(self.weights):
            tensor = self.graph.tensors[i]
            about = f"{comment(tensor.name)}, {tensor.role}: {_shape(tensor.dtype, tensor.shape)}"
            out.append(f"/* {n}: {about}, {tensor.nbytes} bytes */")
        return "\n".join([*out, "", "#endif", ""])

    # ---- tables ----

    def tables(self) -> list[str]:
        rate, count = map(scalars(self.graph).get, SCALARS)
        loss = next((i for i in self.lives.end if self.graph.tensors[i].role == "output"), None)
        residents = [i for i in self.weights if i in self.lives.start]
        residents.sort(key=self.on_card)  # one sector after the other
        slots = [
            f"    {{{self.address(i)}, {self.on_card(i)}, {self.graph.tensors[i].nbytes}, "
            f"{int(i in self.card.copies)}}},"
            f" /* {comment(self.graph.tensors[i].name)} */"
            for i in residents
        ]
        inputs = [
            f"    {{{self.address(i)}, {self.card.record[i]}, {self.graph.tensors[i].nbytes}, "
            f"{int(self.inference is not None and i in self.inference.inputs)}}},"
            f" /* {comment(self.graph.tensors[i].name)} */"
            for i in self.inputs
        ]
        weights = [
            f'    {{"{_text(self.graph.tensors[i].name)}", {self.graph.tensors[i].nbytes}, '
            f"{self.on_card(i)}, {self.address(i)}, {int(i in self.card.copies)}, "
            f"{int(self.graph.tensors[i].role == 'optimizer_state')}, {self.first(i)}}},"
            for i in self.weights
        ]
        fields = {
            "fingerprint": f'"{self.graph.fingerprint}"',
            "start_bytes": self.lives.start_bytes,
            "records_at": self.card.data_at,
            "record_bytes": self.card.record_bytes,
            "batch_at": NOWHERE if self.card.batch_at is None else self.card.batch_at,
            "loss_at": self.last_address(loss),
            "rate_at": self.address(rate),
            "count_at": self.address(count),
            "resident_count": len(residents),
            "input_count": len(self.inputs),
            "weight_count": len(self.weights),
            **{name: getattr(self.card, name) for name in _PLACES},
            "save_every": self.save_every,
            "commits": int(commits(self.plan)),
            "shared": "shared" if self.shares else "NULL",
            "residents": "residents",
            "inputs": "inputs",
        }
        return [
            "static const struct poet_slot residents[] = {",
            *(slots or ["    {0, 0, 0, 0},"]),
            "};",
            "static const struct poet_input inputs[] = {",
            *(inputs or ["    {0, 0, 0, 0},"]),
            "};",
            "const struct poet_weights poet_weights[] = {",
            *(weights or ['    {"", 0, 0, 0, 0, 0, 0, 0},']),
            "};",
            *(["static uint32_t shared[POET_SECTOR / 4];"] if self.shares else []),
            "const struct poet_network poet_network = {",
            *(f"    .{name} = {value}," for name, value in fields.items()),
            "};",
        ]

    @property
    def shares(self) -> bool:
        """Whether sectors that small tensors share are written in the midst of a step."""
        return shares(self.plan, self.card)

    def on_card(self, i: int) -> int:
        return self.card.place(i, side=0)

    def first(self, i: int) -> str:
        """What it begins with: its place in flash, and the word that is everywhere in it."""
        first = self.firsts.get(i, First())
        if first.word is not None:
            return f"POET_FILLED, 0x{first.word:08x}u"
        return f"{NOWHERE if first.at is None else first.at}, 0"

    def address(self, i: int | None) -> str:
        """Where a tensor is in the arena when a step begins."""
        if i is None or i not in self.lives.start:
            return NOWHERE
        return str(self.placement.offsets[self.lives.start[i]])

    def last_address(self, i: int | None) -> str:
        return NOWHERE if i is None else str(self.placement.offsets[self.lives.end[i]])


def _text(name: str) -> str:
    """A name inside a string: with nothing that could end it, nor a trigraph."""
    return comment(name).replace("?", "_")


def _shape(dtype: str | None, shape: tuple[int, ...] | None) -> str:
    text = "".join(f"[{extent}]" for extent in shape or ())
    return f"{dtype} {text}".rstrip() + f", {prod(shape or ())} elements"
