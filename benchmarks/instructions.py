"""Instructions for a multiply-add of the firmware's kernels, counted on emulated boards.

Products with taps in the padding are not counted as work, so borders weigh on small images. All
cases of a board are one program, which counts around each call. The boards are a Cortex-M4F and a
Cortex-M55, which has vectors of four floats (Helium). Peer: the matrix product of
CMSIS-DSP, where its sources are (`pip download --no-binary :all: --no-deps cmsisdsp`, unpacked in
build/cmsisdsp).
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from poet.errors import PoetError
from poet.firmware.boards import CORTEX_M, FOLDER, emulator_command, find_board
from poet.firmware.emulate.emulation import CROSS_COMPILER
from poet.firmware.write.folder import LINK, board_flags, link_script
from poet.firmware.write.text import LIBRARY, SOURCES
from poet.reports.tables import print_table

CMSIS = Path(__file__).parents[1] / "build/cmsisdsp"
FILES = ("conv*", "helium*", "matmul*", "pointwise", "arithmetic", "bytes")
MOST = 40_000
"""Numbers in each of the three arrays that kernels work on."""


class Case(msgspec.Struct, frozen=True):
    kernel: str
    shape: str
    work: int
    """Multiply-adds."""
    call: str
    limit: float | None = None
    helium_limit: float | None = None
    """With vectors: where those are long."""


def products() -> list[Case]:
    found = []
    for m, n, k, limit, helium_limit in (
        (32, 32, 64, 3.0, 1.0),
        (1, 120, 64, 3.2, 1.1),
        (1, 84, 120, 3.2, 1.2),
        (10, 84, 8, 4.0, None),
    ):
        for layout, strides in {
            "x Wᵀ": f"{k}, 1, 1, {k}",
            "x W": f"{k}, 1, {n}, 1",
            "gᵀ x": f"1, {m}, {n}, 1",
        }.items():
            call = (
                f"{{ static const struct poet_matmul s = {{{m}, {n}, {k}, {strides}, {n}, 64}}; "
                "RUN(poet_matmul(out, a, b, NULL, &s)) }"
            )
            shape = f"{m}×{k} by {k}×{n}, {layout}"
            found.append(Case("product", shape, m * n * k, call, limit, helium_limit))
    return found


class Image(msgspec.Struct, frozen=True, kw_only=True):
    ins: int
    outs: int
    size: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    limits: tuple[float | None, float | None, float | None]
    """Forward, gradient of the image, of the weights."""
    helium_limits: tuple[float | None, float | None, float | None] = (None, None, None)
    """The same with vectors."""


IMAGES = (
    Image(ins=16, outs=16, size=16, limits=(4.0, 4.0, 3.0), helium_limits=(1.1, 1.1, 1.0)),
    Image(ins=24, outs=8, size=22, limits=(4.0, 4.0, 3.0), helium_limits=(1.0, 1.0, 1.0)),
    Image(ins=32, outs=32, size=8, limits=(4.5, 4.5, None), helium_limits=(1.6, 1.6, 1.2)),
    Image(ins=32, outs=32, size=4, limits=(4.5, 4.5, None)),
    Image(
        ins=16, outs=32, size=16, stride=2, limits=(4.0, 4.5, None), helium_limits=(1.3, 3.0, 1.2)
    ),
    Image(ins=32, outs=64, size=8, stride=2, limits=(4.5, 4.5, None)),
    Image(
        ins=16, outs=16, size=16, groups=16, limits=(5.0, 5.0, None), helium_limits=(1.4, 1.4, 1.3)
    ),
    Image(
        ins=32, outs=32, size=8, groups=32, limits=(5.0, 5.0, None), helium_limits=(1.7, 1.7, 1.9)
    ),
    Image(
        ins=16,
        outs=16,
        size=16,
        stride=2,
        groups=16,
        limits=(5.0, 4.5, None),
        helium_limits=(2.6, 4.0, 1.9),
    ),
    Image(
        ins=16, outs=32, size=16, kernel=1, limits=(4.0, 4.0, 3.0), helium_limits=(1.1, 1.0, 1.0)
    ),
)


def convolutions() -> list[Case]:
    found = []
    for one in IMAGES:
        k, s, h, pad = one.kernel, one.stride, one.size, one.kernel // 2
        p = (h + 2 * pad - k) // s + 1
        met = sum(0 <= out * s - pad + tap < h for out in range(p) for tap in range(k))
        work = met**2 * one.outs * (one.ins // one.groups)
        fields = (
            f"1, {one.groups}, {one.ins}, {h}, {h}, {one.outs}, {p}, {p}, {k}, {k}, {s}, {s}, "
            f"{pad}, {pad}, 1, 1, {one.outs}, 64, {int(k == 1)}"
        )
        kind = "depthwise " if one.groups > 1 else ""
        shape = f"{kind}{k}×{k}, {one.ins}→{one.outs}, {h}×{h}, stride {s}"
        for kernel, limit, helium_limit, call in zip(
            ("convolution", "data gradient", "weight gradient"),
            one.limits,
            one.helium_limits,
            (
                "conv(out, a, b, NULL,",
                "conv_input_gradient(out, a, b,",
                "conv_weight_gradient(out, a, b,",
            ),
            strict=True,
        ):
            text = f"{{ static const struct poet_conv s = {{{fields}}}; RUN(poet_{call} &s)) }}"
            found.append(Case(kernel, shape, work, text, limit, helium_limit))
    return found


def peers() -> list[Case]:
    """The product of CMSIS-DSP, where its sources are."""
    if _cmsis() is None:
        return []
    m, n, k = 32, 32, 64
    call = (
        f"{{ arm_matrix_instance_f32 x = {{{m}, {k}, a}}, y = {{{k}, {n}, b}}, "
        f"z = {{{m}, {n}, out}}; RUN(arm_mat_mult_f32(&x, &y, &z)) }}"
    )
    return [Case("CMSIS-DSP arm_mat_mult_f32", f"{m}×{k} by {k}×{n}", m * n * k, call)]


def _cmsis() -> Path | None:
    return next(iter(CMSIS.rglob("arm_mat_mult_f32.c")), None)


def _flags_of_cmsis(source: Path) -> list[str]:
    """With its own switch for compilers without ARM's headers, and no warnings of ours."""
    include = next(iter(CMSIS.rglob("arm_math.h"))).parent
    return [
        f"-I{include}", f"-I{include.parent / 'PrivateInclude'}", "-include", "arm_math.h",
        "-D__GNUC_PYTHON__", "-DARM_MATH_LOOPUNROLL", "-w", str(source),
    ]  # fmt: skip


def counted(target: str, cases: list[Case]) -> list[int]:
    """What each call takes on an emulated board, its preparation not counted."""
    calls = "\n    ".join(case.call for case in cases)
    text = _MAIN.replace("@calls@", calls).replace("@most@", str(MOST))
    cmsis = _cmsis()
    done = run_on(target, text, [] if cmsis is None else _flags_of_cmsis(cmsis))
    return [int(line) for line in done.stderr.split()]


def kernel_files() -> list[Path]:
    return [file for name in FILES for file in sorted(SOURCES.glob(f"{name}.c"))]


def run_on(target: str, main_c: str, words: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs a program, linked with the kernels, on an emulated board."""
    board = find_board(target)
    assert board is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.c").write_text(main_c)
        shutil.copyfile(FOLDER / "cortex_m/mpu.h", folder / "mpu.h")
        (folder / "clock.h").write_text(f"#define CLOCK_MHZ {board.clock_mhz}u\n")
        (folder / "link.ld").write_text(link_script(board, board.ram_bytes))
        files = [*kernel_files(), *CORTEX_M, FOLDER / target / "limit.c"]
        command = [
            CROSS_COMPILER, *board_flags(board).split(), f"-I{SOURCES}", f"-I{LIBRARY}", "-I.",
            *LINK.split(), *words, *map(str, files), "main.c", "-lgcc", "-o", "x.elf",
        ]  # fmt: skip
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise PoetError(built.stderr[-2000:])
        return subprocess.run(
            emulator_command(board, "x.elf"), cwd=folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip


_MAIN = """\
#include "board.h"
#include "kernels.h"

static float numbers[@most@];

static void put(uint32_t number)
{
    char text[12];
    int at = 11;
    text[at] = 0;
    text[--at] = '\\n';
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    board_log(text + at);
}

#define RUN(call)                                                       \\
    {                                                                   \\
        uint64_t began = board_instructions();                          \\
        call;                                                           \\
        put((uint32_t)(board_instructions() - began));                  \\
    }

int main(void)
{
    enum { THIRD = @most@ / 3 };
    float *a = numbers, *b = numbers + THIRD, *out = numbers + 2 * THIRD;
    for (int i = 0; i < THIRD; i++) {
        a[i] = (float)(i % 7) - 3.0f;
        b[i] = (float)(i % 5) - 2.0f;
    }
    @calls@
    return 0;
}
"""


def instructions() -> None:
    """Prints the table; ends with an error where a limit is not met."""
    missed, rows = [], []
    for target in ("nrf52840", "mps3-an547"):
        cases = [*products(), *peers(), *convolutions()]
        for case, count in zip(cases, counted(target, cases), strict=True):
            ratio = count / case.work
            limit = case.limit if target == "nrf52840" else case.helium_limit
            text = "" if limit is None else f"{limit:.1f}"
            rows.append([target, case.kernel, case.shape, f"{ratio:.2f}", text])
            if limit is not None and ratio > limit:
                missed.append(f"{target}: {case.kernel}, {case.shape}")
    print_table(
        Console(),
        [("board", "left"), ("kernel", "left"), ("shape", "left"),
         ("instructions a multiply-add", "right"), ("limit", "right")],
        rows,
    )  # fmt: skip
    if missed:
        raise SystemExit(f"a limit is not met: {'; '.join(missed)}")


BENCHMARKS = {"instructions": instructions}
