"""The C of one plan: the memory map and the step, a line for each instruction."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from poet.calls.loops import TILE_BYTES, Loop
from poet.calls.operands import Operand, Work, row_major
from poet.calls.pieces.ways import Part, tiles_of
from poet.calls.shapes.check import check_calls, check_work
from poet.errors import PoetError
from poet.firmware.card.layout import CardLayout
from poet.firmware.place.arena import Placed
from poet.firmware.place.lifetimes import SeatedInstruction
from poet.firmware.write.flash import First
from poet.firmware.write.inference import Inference, NotInferred, Output, inference_of
from poet.firmware.write.kernels import statements
from poet.firmware.write.kernels.call_site import CallSite
from poet.firmware.write.kernels.masks import copied
from poet.firmware.write.kernels.piece_site import PieceSite, Place
from poet.firmware.write.kernels.pieces import part_statements
from poet.firmware.write.kernels.streams import loop_statements
from poet.firmware.write.network import Network
from poet.firmware.write.text import check_statement, comment
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.schedule import Compute, Free, PageIn, PageOut

C_TYPES = {
    "float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t",
    "bool": "uint8_t", "uint8": "uint8_t",
}  # fmt: skip
"""What element types are called in C."""
WIDTH = 100


class Source(msgspec.Struct, frozen=True):
    """The texts of the files that belong to one plan alone."""

    memory_h: str
    network_h: str
    step_c: str
    kernels: frozenset[str]
    """The kernels that it calls."""


def source_of(
    plan: Plan, placed: Placed, card: CardLayout, save_every: int, firsts: Mapping[int, First]
) -> Source:
    """The C of a plan, with its tensors at these addresses and in these slots of the card."""
    return _Writer(plan, placed, card, save_every, firsts).written()


class _Writer:
    def __init__(
        self, plan: Plan, placed: Placed, card: CardLayout, save_every: int,
        firsts: Mapping[int, First],
    ) -> None:  # fmt: skip
        self.plan, self.graph, self.card = plan, plan.graph, card
        self.lives, self.placement = placed.lives, placed.placement
        self.save_every, self.firsts = save_every, firsts
        self.transfers: dict[int, str] = {}
        self.away: set[int] = set()
        """What lasts and was paged out, so that its place is no longer in the copies."""
        self.names = self._names()
        self.constants: dict[tuple[str, str], str] = {}
        self.kernels: set[str] = set()
        self.words = set(self.names)
        self.inference: Inference | None = None
        self.no_inference = ""
        try:
            self.inference = inference_of(plan, self.lives)
        except NotInferred as why:
            self.no_inference = str(why)

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
            self.kernels.add("poet_copy_bytes")
            body.append(
                f"    poet_copy_bytes({self.names[to]}, {self.names[source]}, {nbytes}); "
                "/* where the next step looks for it */"
            )
        infer = [] if self.inference is None else self._inferred(self.inference)
        network = Network(
            self.plan,
            self.lives,
            self.placement,
            self.card,
            self.inference,
            self.save_every,
            self.firsts,
        )
        text = self._step(body, infer, network)
        return Source(
            self._memory(), network.header(self.no_inference), text, frozenset(self.kernels)
        )

    # ---- the memory map ----

    def _memory(self) -> str:
        out = [
            "/* The memory map of the step: where each tensor lies in the arena, and from which to",
            " * which moment (calls and transfers, counted from the start of the step).",
            " */",
            "#ifndef POET_MEMORY_H",
            "#define POET_MEMORY_H",
            "",
            '#include "step.h"',
            "",
            f"enum {{ POET_ARENA_BYTES = {self.placement.arena_bytes} }};",
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
            at = f"(({kind} *)(void *)(poet_arena + {self.placement.offsets[n]}))"
            place = f"#define {self.names[n]} {at}"
            about = f"/* {text}, {block.nbytes} bytes, from {times} */"
            out += [f"{place} {about}"] if len(place + about) < WIDTH else [about, place]
        return "\n".join([*out, "", "#endif", ""])

    # ---- the step ----

    def _step(self, body: list[str], infer: list[str], network: Network) -> str:
        plan, graph = self.plan, self.graph
        head = [
            f"/* One training step of {comment(graph.name)}, as it was planned.",
            " *",
            f" * {len(graph.ops)} ops, {plan.recomputed} of them run again, "
            f"{plan.paged_bytes} bytes to and from the card,",
            f" * {plan.peak_bytes or 0} bytes of tensors at the most, "
            f"in an arena of {self.placement.arena_bytes}.",
            " */",
            '#include "layers.h"',
            '#include "memory.h"',
            '#include "step.h"',
            "",
            "POET_ARENA uint8_t poet_arena[POET_ARENA_BYTES];",
            "",
            *network.tables(),
            "",
        ]
        shapes = [
            f"static const struct poet_{struct} {name} = {{{text}}};"
            for (struct, text), name in self.constants.items()
        ]
        lines = [*head, *shapes, "", "enum poet_error poet_run_step(struct poet *ctx)", "{", *body]
        lines += ["    return ctx->error;", "}", ""]
        lines += ["/* What the model returns, before its loss, as in evaluation. */"]
        lines += ["enum poet_error poet_run_inference(struct poet *ctx, void *const *outputs)", "{"]
        if infer:
            lines += [*infer, "    return ctx->error;", "}", ""]
        else:
            lines += [
                "    (void)ctx, (void)outputs;",
                "    return POET_ERROR_NO_INFERENCE;",
                "}",
                "",
            ]
        return "\n".join(part for line in lines for part in _wrapped(line))

    def _on_card(self, i: int, is_written: bool = False) -> str:
        """Where a tensor lies on the card, as C. A step reads one copy of what changes, and writes
        the other; inputs that stay on the card lie in the sample's record."""
        card = self.card
        lasts = i in card.copies or i in card.rows or i in card.fixed or i in card.flash
        if i in self.away or not lasts:
            return f"{card.pages[i]}u" if i in card.pages else f"ctx->record + {card.record[i]}"
        if i not in card.copies:
            return f"{card.place(i, side=0)}u"
        is_new = is_written or self.graph.tensors[i].becomes is not None
        return f"ctx->{'fresh' if is_new else 'old'} + {card.copies[i]}u"

    def _instruction(self, seated: SeatedInstruction) -> list[str]:
        step = seated.instruction
        if isinstance(step, Compute):
            return self._compute(seated, step)
        tensor = self.graph.tensors[step.tensor]
        if isinstance(step, Free):
            return [
                f"    poet_give(ctx, {seated.gone_bytes}); /* {comment(tensor.name)} is free */"
            ]
        name = self.names[seated.blocks["tensor", step.tensor]]
        call = "poet_page_in" if isinstance(step, PageIn) else "poet_page_out"
        if id(seated) not in self.transfers:  # an inference has them where the step has them
            if isinstance(step, PageOut) and step.tensor in self.card.pages:
                self.away.add(step.tensor)
            self.transfers[id(seated)] = self._on_card(step.tensor)
        return [f"    {call}(ctx, {name}, {self.transfers[id(seated)]}, {tensor.nbytes});"]

    def _compute(self, seated: SeatedInstruction, step: Compute) -> list[str]:
        lines = [self._begin(step)]
        if seated.new_bytes:
            lines.append(f"    poet_take(ctx, {seated.new_bytes});")
        lines += self._counted(self._statements(seated, step))
        if seated.gone_bytes:
            lines.append(f"    poet_give(ctx, {seated.gone_bytes});")
        return [*lines, f"    POET_END({step.op});"]

    def _begin(self, step: Compute) -> str:
        op = self.graph.ops[step.op]
        return f"    POET_BEGIN({step.op}); /* {comment(op.name)}, {op.phase} */"

    def _counted(self, texts: list[str]) -> list[str]:
        """Statements as lines; which kernels they call is remembered."""
        for text in texts:
            self.kernels.update(re.findall(r"\b\w+(?=\()|\bpoet_\w+", text))
        return [f"    {text}" for text in texts]

    def _statements(self, seated: SeatedInstruction, step: Compute) -> list[str]:
        sites = self._sites(seated, step)
        if seated.way is not None:
            parts = enumerate(seated.way.parts)
            return [x for n, part in parts for x in self._part(seated, step, n, part, sites)]
        updates = {loop.update for loop in seated.loops.values()}
        chosen = (number for number in sites if number not in updates)
        return [x for number in chosen for x in self._call(seated, step, number, sites)]

    def _sites(self, seated: SeatedInstruction, step: Compute) -> dict[int, "_Site"]:
        """The calls of an op in their places, each checked."""
        check_calls(self.graph, step.op)
        for work in seated.works:
            check_work(self.graph, step.op, work)
        return {work.number: _Site(self, step.op, seated, work) for work in seated.works}

    def _call(
        self, seated: SeatedInstruction, step: Compute, number: int, sites: Mapping[int, "_Site"]
    ) -> list[str]:
        """A call as it is, or in a loop over the tiles of what it streams."""
        site, loop = sites[number], seated.loops.get(number)
        if loop is None:
            return self._checked(site, partial(statements, site))
        update = None if loop.update is None else sites[loop.update]
        return self._checked(site, partial(self._loop, site, update, loop, step))

    def _part(
        self, seated: SeatedInstruction, step: Compute, n: int, part: Part,
        sites: Mapping[int, "_Site"],
    ) -> list[str]:  # fmt: skip
        """The statements of a part of an op that runs piece by piece."""
        assert seated.way is not None
        numbers = {tile: place for place, tile in enumerate(tiles_of(seated.way))}
        site = _Site(self, step.op, seated, part.work)

        def tile(key: str) -> str:
            return self.names[seated.blocks["tile", numbers[n, key]]]

        return self._checked(site, partial(part_statements, site, part, sites, tile, self._on_card))

    # ---- the inference ----

    def _inferred(self, inference: Inference) -> list[str]:
        lines = []
        for stage in inference.stages:
            step, seated = stage.seated.instruction, stage.seated
            if not isinstance(step, Compute):
                lines += self._instruction(seated)
                continue
            made = self._sites(seated, step)
            made |= {w.number: _Site(self, step.op, seated, w) for w in stage.works.values()}
            lines.append(self._begin(step))
            for place in sorted({*stage.works, *stage.parts}):
                if place in stage.parts:
                    texts = self._part(seated, step, place, stage.parts[place], made)
                else:
                    texts = self._call(seated, step, stage.works[place].number, made)
                lines += self._counted(texts)
                for output in stage.returned.get(place, ()):
                    lines += self._counted(self._returned(seated, step, output))
            lines.append(f"    POET_END({step.op});")
        return lines

    def _returned(self, seated: SeatedInstruction, step: Compute, output: Output) -> list[str]:
        """What the model returns is put where the caller wants it."""
        piece, to = output.piece, f"outputs[{output.answer.place}]"
        if output.is_on_card:
            at = piece.offset * (output.nbytes // piece.count)
            where = f"{self._on_card(piece.storage[1])} + {at}"
            return [f"poet_stream_in(ctx, {to}, {where}, {output.nbytes});"]
        work = Work(0, "aten.clone.default", "aten.clone", {}, ())
        site = _Site(self, step.op, seated, work)
        whole = msgspec.structs.replace(piece, offset=0, strides=row_major(piece.shape))
        there = Place(whole, f"({C_TYPES[piece.dtype]} *){to}")
        here = Place(msgspec.structs.replace(piece, offset=0), site.at(piece))
        pair = PieceSite(site, work, {"to": there, "from": here}, {}, ())

        def write() -> list[str]:
            return [copied(pair, pair.arguments["to"], pair.arguments["from"])]

        return self._checked(site, write)

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
        return loop_statements(site, update, loop, rows, self._on_card)


class _Site(CallSite):
    """A call of this step (see `kernels.site.Site`)."""

    def __init__(self, writer: _Writer, k: int, seated: SeatedInstruction, work: Work) -> None:
        super().__init__(work, k)
        self._writer, self._seated, self._work = writer, seated, work

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

    def literal(self, struct: str, text: str) -> str:
        known = self._writer.constants
        if (struct, text) not in known:
            check_statement(text, ())
            number = sum(kind == struct for kind, _ in known)
            known[struct, text] = f"{struct}_{number}"
            self._writer.words.add(known[struct, text])
        return f"&{known[struct, text]}"


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
