"""The C of one plan: the memory map and the step, a line for each instruction."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from poet.calls.loops import TILE_BYTES, Loop
from poet.calls.operands import Operand, Work
from poet.calls.pieces.ways import Way, tiles_of
from poet.calls.shapes.check import check_calls, check_work
from poet.calls.updates import SCALARS
from poet.errors import PoetError
from poet.firmware.card.image import CardLayout, scalars
from poet.firmware.place.arena import Placed
from poet.firmware.place.lifetimes import SeatedInstruction
from poet.firmware.write.kernels import statements
from poet.firmware.write.kernels.pieces import part_statements
from poet.firmware.write.kernels.site import Fields
from poet.firmware.write.kernels.streams import loop_statements
from poet.firmware.write.text import c_float, c_int, check_statement, comment
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.schedule import Compute, Free, PageIn

C_TYPES = {
    "float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t",
    "bool": "uint8_t", "uint8": "uint8_t",
}  # fmt: skip
"""What element types are called in C."""
NOWHERE = "NOWHERE"
MOST_DIMS = 4
WIDTH = 100


class Source(msgspec.Struct, frozen=True):
    """The texts of the files that belong to one plan alone."""

    memory_h: str
    step_c: str
    kernels: frozenset[str]
    """The kernels that it calls."""


def source_of(plan: Plan, placed: Placed, card: CardLayout) -> Source:
    """The C of a plan, with its tensors at these addresses and in these slots of the card."""
    return _Writer(plan, placed, card).written()


class _Writer:
    def __init__(self, plan: Plan, placed: Placed, card: CardLayout) -> None:
        self.plan, self.graph, self.card = plan, plan.graph, card
        self.lives, self.placement = placed.lives, placed.placement
        self.names = self._names()
        self.constants: dict[tuple[str, str], str] = {}
        self.kernels: set[str] = set()
        self.words = set(self.names)

    def _names(self) -> list[str]:
        """A C name for each block: its tensor's, with a number where several share it."""
        taken: dict[str, int] = {}
        names = []
        for block in self.lives.blocks:
            base = re.sub(r"\W+", "_", block.name, flags=re.ASCII).strip("_") or "tensor"
            base = f"t_{base}"
            taken[base] = taken.get(base, 0) + 1
            names.append(base if taken[base] == 1 else f"{base}_{taken[base]}")
        seen: set[str] = set()
        for n, name in enumerate(names):
            while names[n] in seen:
                names[n] = f"{name}_{n}"
            seen.add(names[n])
        return names

    def written(self) -> Source:
        body: list[str] = []
        for seated in self.lives.instructions:
            body += self._instruction(seated)
        for to, source in self.lives.moves:
            nbytes = self.lives.blocks[to].nbytes
            self.kernels.add("copy_bytes")
            body.append(
                f"    copy_bytes({self.names[to]}, {self.names[source]}, {nbytes}); "
                "/* where the next step looks for it */"
            )
        return Source(self._memory(), self._step(body), frozenset(self.kernels))

    # ---- the memory map ----

    def _memory(self) -> str:
        out = [
            "/* The memory map of the step: where each tensor lies in the arena, and from which to",
            " * which moment (calls and transfers, counted from the start of the step).",
            " */",
            "#ifndef POET_MEMORY_H",
            "#define POET_MEMORY_H",
            "",
            '#include "train.h"',
            "",
            f"enum {{ ARENA_BYTES = {self.placement.arena_bytes} }};",
            "",
        ]
        order = sorted(
            range(len(self.names)),
            key=lambda n: (self.placement.offsets[n], self.lives.blocks[n].spans[0]),
        )
        for n in order:
            block = self.lives.blocks[n]
            times = " and ".join(f"{first} to {last}" for first, last in block.spans)
            text = comment(block.text)
            kind = C_TYPES.get(block.dtype, "uint8_t")
            place = f"#define {self.names[n]} (({kind} *)(arena + {self.placement.offsets[n]}))"
            about = f"/* {text}, {block.nbytes} bytes, from {times} */"
            out += [f"{place} {about}"] if len(place + about) < WIDTH else [about, place]
        return "\n".join([*out, "", "#endif", ""])

    # ---- the step ----

    def _step(self, body: list[str]) -> str:
        plan, graph = self.plan, self.graph
        loss = next((i for i in self.lives.end if graph.tensors[i].role == "output"), None)
        rate, count = map(scalars(graph).get, SCALARS)
        head = [
            f"/* One training step of {comment(graph.name)}, as it was planned.",
            " *",
            f" * {len(graph.ops)} ops, {plan.recomputed} of them run again, "
            f"{plan.paged_bytes} bytes to and from the card,",
            f" * {plan.peak_bytes or 0} bytes of tensors at the most, "
            f"in an arena of {self.placement.arena_bytes}.",
            " */",
            '#include "kernels.h"',
            '#include "memory.h"',
            '#include "train.h"',
            "",
            '__attribute__((section(".arena"), aligned(8))) uint8_t arena[ARENA_BYTES];',
            f"const uint32_t start_bytes = {self.lives.start_bytes};",
            f"const uint32_t record_bytes = {self.card.record_bytes};",
            f'const char fingerprint[33] = "{graph.fingerprint}";',
            f"const uint32_t loss_at = {self._address(loss, self.lives.end)};",
            f"const uint32_t rate_at = {self._address(rate, self.lives.start)};",
            f"const uint32_t count_at = {self._address(count, self.lives.start)};",
            "",
            *self._slots("residents", self._residents()),
            *self._slots("inputs", self._loaded()),
        ]
        shapes = [
            f"static const struct {struct} {name} = {{{text}}};"
            for (struct, text), name in self.constants.items()
        ]
        lines = [*head, *shapes, "", "void step(void)", "{", *body, "}", ""]
        return "\n".join(part for line in lines for part in _wrapped(line))

    def _address(self, i: int | None, blocks: dict[int, int]) -> str:
        return NOWHERE if i is None else str(self.placement.offsets[blocks[i]])

    def _residents(self) -> dict[int, int]:
        return {
            i: self.card.slots[i]
            for i in self.lives.start
            if i in self.card.slots and self.graph.tensors[i].role != "input"
        }

    def _loaded(self) -> dict[int, int]:
        """Inputs that a step begins with in RAM, and where each is in a record."""
        return {i: at for i, at in self.card.record.items() if i in self.lives.start}

    def _on_card(self, i: int) -> str:
        """Where a tensor lies on the card, as C: inputs that stay there lie in the sample's record,
        others in slots of their own."""
        if i in self.card.slots:
            return f"{self.card.slots[i]}u"
        return f"poet_record + {self.card.record[i]}"

    def _slots(self, name: str, on_card: dict[int, int]) -> list[str]:
        rows = [
            f"    {{{self.placement.offsets[self.lives.start[i]]}, {at}, "
            f"{self.graph.tensors[i].nbytes}}}, /* {comment(self.graph.tensors[i].name)} */"
            for i, at in on_card.items()
        ]
        count = f"const uint32_t {name[:-1]}_count = {len(rows)};"
        rows = rows or ["    {0, 0, 0},"]
        return [f"const struct slot {name}[] = {{", *rows, "};", count, ""]

    def _instruction(self, seated: SeatedInstruction) -> list[str]:
        step = seated.instruction
        if isinstance(step, Compute):
            return self._compute(seated, step)
        tensor = self.graph.tensors[step.tensor]
        if isinstance(step, Free):
            return [f"    give({seated.gone_bytes}); /* {comment(tensor.name)} is free */"]
        name = self.names[seated.blocks["tensor", step.tensor]]
        call = "page_in" if isinstance(step, PageIn) else "page_out"
        return [f"    {call}({name}, {self._on_card(step.tensor)}, {tensor.nbytes});"]

    def _compute(self, seated: SeatedInstruction, step: Compute) -> list[str]:
        op = self.graph.ops[step.op]
        lines = [f"    /* {comment(op.name)}, {op.phase} */"]
        if seated.new_bytes:
            lines.append(f"    take({seated.new_bytes});")
        for text in self._statements(seated, step):
            self.kernels.update(re.findall(r"\b(\w+)\(", text))
            lines.append(f"    {text}")
        if seated.gone_bytes:
            lines.append(f"    give({seated.gone_bytes});")
        return lines

    def _statements(self, seated: SeatedInstruction, step: Compute) -> list[str]:
        check_calls(self.graph, step.op)
        for work in seated.works:
            check_work(self.graph, step.op, work)
        sites = {work.number: _Site(self, step.op, seated, work) for work in seated.works}
        if seated.way is not None:
            return self._pieces(seated, step, seated.way, sites)
        updates = {loop.update for loop in seated.loops.values()}
        lines = []
        for number, site in sites.items():
            if number in updates:
                continue
            loop = seated.loops.get(number)
            if loop is None:
                lines += self._checked(site, partial(statements, site))
                continue
            update = None if loop.update is None else sites[loop.update]
            lines += self._checked(site, partial(self._loop, site, update, loop, step))
        return lines

    def _pieces(
        self, seated: SeatedInstruction, step: Compute, way: Way, sites: Mapping[int, "_Site"]
    ) -> list[str]:
        """The statements of an op that runs piece by piece."""
        numbers = {tile: n for n, tile in enumerate(tiles_of(way))}
        lines = []
        for at, part in enumerate(way.parts):
            site = _Site(self, step.op, seated, part.work)

            def tile(key: str, at: int = at) -> str:
                return self.names[seated.blocks["tile", numbers[at, key]]]

            write = partial(part_statements, site, part, sites, tile, self._on_card)
            lines += self._checked(site, write)
        return lines

    def _checked(self, site: "_Site", write: Callable[[], list[str]]) -> list[str]:
        """The statements of a call, if they are made of nothing but what they should be."""
        try:
            made = write()
            for text in made:
                check_statement(text, self.words)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise site.refuse(f"its arguments do not go together: {error}") from error
        return made

    def _loop(self, site: "_Site", update: "_Site | None", loop: Loop, step: Compute) -> list[str]:
        rows = loop.tile_rows(TILE_BYTES[step.variant])
        return loop_statements(site, update, loop, rows, self.card.slots.__getitem__)


class _Site:
    """A call in its place (see `kernels.site.Site`)."""

    def __init__(self, writer: _Writer, k: int, seated: SeatedInstruction, work: Work) -> None:
        self._writer, self._seated, self._work = writer, seated, work
        self.kind, self.family = work.kind, work.family
        self.arguments, self.results = work.arguments, work.results
        self.op_number = k

    def refuse(self, why: str) -> Exception:
        where = self._writer.graph.op_text(self.op_number)
        return PoetError(f"{printable(self.kind)} of {where} cannot be written in C: {why}")

    def at(self, operand: Operand | None, further: int = 0) -> str:
        if operand is None:
            return "NULL"
        if operand.dtype not in C_TYPES:
            raise self.refuse(f"{operand.dtype} has no type in C")
        block = self._seated.blocks[operand.storage]
        text = self._writer.names[block]
        if self._writer.lives.blocks[block].dtype != operand.dtype:
            text = f"({C_TYPES[operand.dtype]} *){text}"
        offset = operand.offset + further
        return text if offset == 0 else f"{text} + {offset}"

    def is_parameter(self, operand: Operand) -> bool:
        key, i = operand.storage
        return key == "tensor" and self._writer.graph.tensors[i].role == "parameter"

    def with_arguments(self, arguments: dict[str, Any]) -> "_Site":
        work = msgspec.structs.replace(self._work, arguments=arguments)
        return _Site(self._writer, self.op_number, self._seated, work)

    def scalar(self, operand: Operand) -> str:
        return f"*{self.at(operand)}"

    def constant(self, struct: str, fields: Fields) -> str:
        text = ", ".join(
            f".{name} = {c_float(x) if isinstance(x, float) else c_int(x)}"
            for name, x in fields.items()
        )
        return self.literal(struct, text)

    def literal(self, struct: str, text: str) -> str:
        known = self._writer.constants
        if (struct, text) not in known:
            check_statement(text, ())
            number = sum(kind == struct for kind, _ in known)
            known[struct, text] = f"{struct}_{number}"
            self._writer.words.add(known[struct, text])
        return f"&{known[struct, text]}"

    def view(self, operand: Operand) -> str:
        dims = _merged(operand.shape, operand.strides)
        if len(dims) > MOST_DIMS:
            raise self.refuse(f"it has {len(dims)} dimensions that cannot be merged")
        dims = [(1, 0)] * (MOST_DIMS - len(dims)) + dims
        sizes, strides = (", ".join(str(d[n]) for d in dims) for n in (0, 1))
        return self.literal("view", f"{{{sizes}}}, {{{strides}}}")


def _merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Dimensions of extent 1 dropped. The rest stay: several views must agree on them."""
    return [(s, t) for s, t in zip(shape, strides, strict=True) if s != 1]


def _wrapped(line: str) -> list[str]:
    """A statement in lines of at most `WIDTH` characters, broken after commas."""
    lines = []
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    while len(line) > WIDTH:
        at = line.rfind(", ", len(indent), WIDTH) + 1
        if at == 0 or line.lstrip().startswith(("/*", "#")):
            break
        lines.append(line[:at])
        line = indent + line[at:].lstrip()
    return [*lines, line]
