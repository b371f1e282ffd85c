"""Probes: a program that runs calls one by one on a board, and says what instructions each took.

Each call stands as it does in `step.c`, written by the same table, over memory that begins anew for
each: numbers without a pattern, indices that exist. So the kernels do what they do in a step, on
shapes of which a step has many, once. An op can be run piece by piece too: then its transfers move
nothing, as what they take is the store's.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from poet.calls.operands import Operand, Work
from poet.calls.pieces.nest import tile_bytes
from poet.calls.pieces.ways import Way, tiles_of
from poet.calls.references import Reference
from poet.calls.shapes.check import check_work
from poet.firmware.place.lifetimes import Block, Lifetimes, SeatedInstruction
from poet.firmware.write.kernels import statements
from poet.firmware.write.source import C_TYPES, Source, _Site, _Writer
from poet.values.graph import Graph, Tensor, Value
from poet.values.schedule import Compute

_POSITIVE = ("save_invstd", "save_var", "running_var", "rstd", "exp_avg_sq", "square_average")
"""Arguments that a network never has below 0."""
_POSITIVE_KINDS = ("aten.log", "aten.sqrt", "aten.rsqrt", "aten.pow")
_RECTIFIED = ("aten.relu", "aten.threshold_backward", "aten.hardtanh", "aten.hardtanh_backward")
"""What leaves about half of its results 0: arithmetic in software is faster with those."""
_ALIGNMENT = 8


class Probe(NamedTuple):
    """A call of an op of a graph, to be run by itself; with a way, all calls, piece by piece."""

    graph: Graph
    op: int
    works: tuple[Work, ...]
    way: Way | None = None

    @property
    def operands(self) -> list[Operand]:
        parts = () if self.way is None else self.way.parts
        found: list[Operand] = []
        for work in (*self.works, *(part.work for part in parts)):
            found += [*work.reads, *(result for result in work.results if result is not None)]
        return found

    @property
    def arena_bytes(self) -> int:
        """What its operands and tiles take together."""
        storages = {each.storage for each in self.operands}
        tiles = sum(_up(nbytes) for _, _, nbytes in self.tiles())
        return tiles + sum(_up(self.storage_bytes(key, n)) for key, n in storages)

    def tiles(self) -> Iterator[tuple[str, Operand, int]]:
        """Its tiles, in the way's order: keys, what they are of, and bytes."""
        if self.way is None:
            return
        for n, key in tiles_of(self.way):
            part = self.way.parts[n]
            assert part.space is not None
            assert part.nest is not None
            side = part.held[key].side
            yield key, side.operand, tile_bytes(side, part.space.axes, part.nest.sizes)

    def storage_bytes(self, key: str, n: int) -> int:
        return self._described(key, n).nbytes

    def dtype(self, key: str, n: int) -> str:
        return self._described(key, n).dtype or "uint8"

    def is_rectified(self, key: str, n: int) -> bool:
        """Whether a kernel made it that leaves zeros."""
        maker = self.graph.producer[n] if key == "tensor" else self.op
        calls = () if maker is None else self.graph.ops[maker].calls
        return any(
            call.family in _RECTIFIED and {key: n} in [r for r in call.results if r is not None]
            for call in calls
        )

    def _described(self, key: str, n: int) -> Tensor | Value:
        return self.graph.tensors[n] if key == "tensor" else self.graph.ops[self.op].values[n]


def probe_source(probes: Sequence[Probe]) -> Source:
    """The C of the program: `step_c` is its `main`, over `board.h` and the kernels."""
    writer = _ProbeWriter()
    bodies = [writer.function(n, probe) for n, probe in enumerate(probes)]
    shapes = [
        f"static const struct poet_{struct} {name} = {{{text}}};"
        for (struct, text), name in writer.constants.items()
    ]
    arena = max((probe.arena_bytes for probe in probes), default=0)
    lines = [
        _HEAD,
        f'__attribute__((section(".arena"), aligned(8))) uint8_t poet_arena[{arena + 8}];',
        *writer.places,
        *shapes,
        *(line for body in bodies for line in body),
        "int main(void)",
        "{",
        *(f"    prepare_{n}();\n    COUNTED(call_{n}());" for n in range(len(probes))),
        "    COUNTED(nothing());",
        '    board_log("done\\n");',
        "    board_exit(0);",
        "    return 0;",
        "}",
    ]
    return Source(
        memory_h="", network_h="", step_c="\n".join([*lines, ""]), kernels=frozenset(writer.kernels)
    )


class _ProbeWriter(_Writer):
    """Writes calls by themselves, each in a function of its own."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.words: set[str] = set()
        self.constants: dict[tuple[str, str], str] = {}
        self.kernels: set[str] = set()
        self.lives = Lifetimes(
            blocks=[], instructions=[], start={}, end={}, moves=[], start_bytes=0
        )
        self.places: list[str] = []

    def function(self, number: int, probe: Probe) -> list[str]:
        self.graph = probe.graph
        for work in probe.works:
            check_work(probe.graph, probe.op, work)
        step = Compute(probe.op)
        seated = SeatedInstruction(step, works=list(probe.works), way=probe.way)
        at, filled = 0, []
        for reference, (nbytes, dtype, sign) in _places(probe).items():
            seated.blocks[reference] = len(self.names)
            name, kind = f"t_{len(self.names)}", C_TYPES.get(dtype, "uint8_t")
            self.lives.blocks.append(
                Block(name=name, nbytes=nbytes, alignment=_ALIGNMENT, spans=[], dtype=dtype)
            )
            self.names.append(name)
            self.words.add(name)
            self.places.append(f"#define {name} (({kind} *)(void *)(poet_arena + {at}))")
            fill = _FILLS.get(dtype, "zeros")
            more = f", {sign}" if fill == "noise" else ""
            filled.append(f"    {fill}({name}, {nbytes}u{more});")
            at += _up(nbytes)
        if probe.way is None:
            site = _Site(self, probe.op, seated, probe.works[0])
            texts = self._counted(self._checked(site, partial(statements, site)))
        else:
            texts = self._counted(self._statements(seated, step))
        return [
            f"static void prepare_{number}(void)", "{", *filled, "}",
            f"__attribute__((noinline)) static void call_{number}(void)", "{", *texts, "}",
        ]  # fmt: skip

    def _on_card(self, i: int, is_written: bool = False) -> str:
        return "0u"


def _places(probe: Probe) -> dict[Reference, tuple[int, str, int]]:
    """What lies in the arena: its bytes, its element type, and the sign of its noise."""
    positive = {
        operand.storage
        for work in probe.works
        for name, operand in work.arguments.items()
        if isinstance(operand, Operand)
        if work.family in _POSITIVE_KINDS or name in _POSITIVE
    }
    found: dict[Reference, tuple[int, str, int]] = {}
    for operand in probe.operands:
        place = operand.storage
        sign = 1 if place in positive else 2 * probe.is_rectified(*place)
        found[place] = probe.storage_bytes(*place), probe.dtype(*place), sign
    for n, (key, operand, nbytes) in enumerate(probe.tiles()):
        sign = found[operand.storage][2] if operand.storage in found else 0
        is_positive = key.split(".")[-1] in _POSITIVE
        found["tile", n] = nbytes, operand.dtype, 1 if is_positive else sign
    return found


def _up(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


_FILLS = {"float32": "noise", "float64": "halves", "bool": "bits"}
_HEAD = """\
/* Calls one by one, and the instructions of each. */
#include "board.h"
#include "kernels.h"
#include "layers.h"
#include "mask.h"
#include "step.h"

static struct poet net, *const ctx = &net;

void poet_no_such_index(int64_t index, int32_t extent)
{
    (void)index, (void)extent;
    board_log("error: an index that does not exist\\n");
    board_exit(1);
}

void poet_check_failed(uint32_t op)
{
    (void)op; /* the numbers are made up */
}

/* Transfers move nothing; to begin them is the op's. */
__attribute__((noinline)) void poet_stream_in(struct poet *of, void *to, uint32_t card, uint32_t n)
{
    __asm__ volatile("" : : "r"(of), "r"(to), "r"(card), "r"(n) : "memory");
}

__attribute__((noinline)) void poet_stream_out(struct poet *of, const void *from, uint32_t card,
                                               uint32_t n)
{
    __asm__ volatile("" : : "r"(of), "r"(from), "r"(card), "r"(n) : "memory");
}

#define RUNS(move)                                                                              \\
    for (uint32_t i = 0; i < runs->count[0]; i++)                                               \\
        for (uint32_t j = 0; j < runs->count[1]; j++)                                           \\
            for (uint32_t k = 0; k < runs->count[2]; k++, at += runs->bytes)                    \\
                move(of, at, card + i * runs->step[0] + j * runs->step[1] + k * runs->step[2],  \\
                     runs->bytes)

void poet_stream_in_runs(struct poet *of, void *to, uint32_t card, const struct poet_runs *runs)
{
    uint8_t *at = to;
    RUNS(poet_stream_in);
}

void poet_stream_out_runs(struct poet *of, const void *from, uint32_t card,
                          const struct poet_runs *runs)
{
    const uint8_t *at = from;
    RUNS(poet_stream_out);
}

static uint32_t state = 1;

__attribute__((unused)) static void noise(void *to, uint32_t nbytes, int sign)
{
    float *at = to;
    for (uint32_t i = 0; i < nbytes / 4; i++) {
        state = state * 1664525u + 1013904223u;
        float x = (float)(int32_t)state * (1.7f / 2147483648.0f);
        at[i] = sign == 0 || x > 0.0f ? x : sign == 1 ? 0.1f - x : 0.0f;
    }
}

__attribute__((unused)) static void zeros(void *to, uint32_t nbytes)
{
    uint8_t *at = to;
    for (uint32_t i = 0; i < nbytes; i++)
        at[i] = 0;
}

__attribute__((unused)) static void bits(void *to, uint32_t nbytes)
{
    uint8_t *at = to;
    for (uint32_t i = 0; i < nbytes; i++) {
        state = state * 1664525u + 1013904223u;
        at[i] = state >> 31;
    }
}

__attribute__((unused)) static void halves(void *to, uint32_t nbytes)
{
    double *at = to;
    for (uint32_t i = 0; i < nbytes / 8; i++)
        at[i] = 0.5;
}

__attribute__((noinline)) static void nothing(void)
{
    (void)ctx;
}

static void put(uint64_t number)
{
    char text[24];
    int at = 23;
    text[at] = 0;
    text[--at] = '\\n';
    do {
        text[--at] = (char)('0' + (int)(number % 10));
        number /= 10;
    } while (number != 0);
    board_log(text + at);
}

#define COUNTED(call)                                                                           \\
    do {                                                                                        \\
        uint64_t began = board_instructions();                                                  \\
        call;                                                                                   \\
        put(board_instructions() - began);                                                      \\
    } while (0)
"""
