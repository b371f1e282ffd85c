"""What the firmware's kernels cost, in instructions on an emulated Cortex-M4F.

`firmware-kernels`: instructions for each multiply-add. Peer: the matrix product of CMSIS-DSP, where
its sources are (`pip download --no-binary :all: --no-deps cmsisdsp`, unpacked in build/cmsisdsp).
Limits: 3.0 for products and weight gradients, 4.0 for 3×3 convolutions.

`firmware-arenas`: the arena beside the planned peak, for plans of small networks. Limit: 1.02.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

import poet
from poet.errors import PoetError
from poet.firmware.boards import FOLDER, find_board
from poet.firmware.emulate.emulation import CROSS_COMPILER, emulator_command
from poet.firmware.place.arena import least_bytes, placed
from poet.firmware.write.folder import LINK, board_flags, link_script
from poet.firmware.write.text import SOURCES
from poet.reports.tables import print_table
from poet.tracer.by_name import capture_named
from poet.values.optimizers import parse_optimizer

TARGET = "netduinoplus2"
CMSIS = Path(__file__).parents[1] / "build/cmsisdsp"

_MAIN = """\
#include "board.h"
#include "kernels.h"
#include "train.h"

static float a[{a}], b[{b}], out[{out}];

static void put(uint32_t number)
{{
    char text[12];
    int at = 11;
    text[at] = 0;
    text[--at] = '\\n';
    do {{
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    }} while (number);
    board_log(text + at);
}}

{extra}

int main(void)
{{
    for (int i = 0; i < {a}; i++)
        a[i] = (float)(i % 7) - 3.0f;
    for (int i = 0; i < {b}; i++)
        b[i] = (float)(i % 5) - 2.0f;
    static const struct conv shape = {{{conv}}};
    static const struct matmul product = {{{product}}};
    (void)shape;
    (void)product;
    uint64_t began = board_instructions();
    {call}
    put((uint32_t)(board_instructions() - began));
    return 0;
}}
"""


def kernels() -> None:
    conv = (
        ".batch = 1, .groups = {g}, .channels = {c}, .height = {h}, .width = {h}, "
        ".out_channels = {o}, .out_height = {p}, .out_width = {p}, .kernel_height = {k}, "
        ".kernel_width = {k}, .stride_y = {s}, .stride_x = {s}, .pad_y = {q}, .pad_x = {q}, "
        ".dilation_y = 1, .dilation_x = 1, .out_planes = {o}, .block = 64"
    )
    rows = []
    for m, n, k in ((32, 32, 64), (1, 120, 64), (10, 84, 8)):
        fields = f".m = {m}, .n = {n}, .k = {k}, .out_row = {n}, .block = 64, "
        layouts = {
            "x Wᵀ": f".a_row = {k}, .a_column = 1, .b_row = 1, .b_column = {k}",
            "x W": f".a_row = {k}, .a_column = 1, .b_row = {n}, .b_column = 1",
            "gᵀ x": f".a_row = 1, .a_column = {m}, .b_row = {n}, .b_column = 1",
        }
        for what, strides in layouts.items():
            count = _instructions(
                "matmul(out, a, b, NULL, &product);", product=fields + strides,
                a=m * k, b=k * n, out=m * n,
            )  # fmt: skip
            ratio = f"{count / (m * n * k):.2f}"
            rows.append([f"matmul {what}", f"{m}×{k} by {k}×{n}", ratio, "3.0"])
    if (found := _cmsis()) is not None:
        m, n, k = 32, 32, 64
        call = (
            f"arm_matrix_instance_f32 x = {{{m}, {k}, a}}, y = {{{k}, {n}, b}}, "
            f"z = {{{m}, {n}, out}};"
            "arm_mat_mult_f32(&x, &y, &z);"
        )
        count = _instructions(call, a=m * k, b=k * n, out=m * n, more=found)
        ratio = f"{count / (m * n * k):.2f}"
        rows.append(["CMSIS-DSP arm_mat_mult_f32", f"{m}×{k} by {k}×{n}", ratio, ""])
    for c, o, h, k, s, g in (
        (16, 16, 16, 3, 1, 1), (16, 32, 16, 3, 2, 1), (32, 32, 8, 3, 1, 1), (16, 16, 16, 3, 1, 16),
        (16, 32, 16, 1, 1, 1), (32, 32, 4, 3, 1, 1),
    ):  # fmt: skip
        q = k // 2
        p = (h + 2 * q - k) // s + 1
        macs = sum(
            _taps(row, s, q, k, h) * _taps(column, s, q, k, h)
            for row in range(p) for column in range(p)
        ) * o * (c // g)  # fmt: skip
        fields = conv.format(c=c, o=o, h=h, p=p, k=k, s=s, q=q, g=g)
        image, weight, result = c * h * h, o * (c // g) * k * k, o * p * p
        kind = "depthwise " if g > 1 else ""
        for what, call, sizes, limit in (
            ("convolution", "conv(out, a, b, NULL", (image, weight, result), "4.0"),
            ("data gradient", "conv_input_gradient(out, a, b", (result, weight, image), "4.0"),
            ("weight gradient", "conv_weight_gradient(out, a, b", (result, image, weight), "3.0"),
        ):
            call += ", &shape);"
            count = _instructions(call, conv=fields, a=sizes[0], b=sizes[1], out=sizes[2])
            rows.append([
                f"{kind}{what}", f"{c}→{o}, {h}×{h}, {k}×{k}, stride {s}", f"{count / macs:.2f}",
                limit,
            ])  # fmt: skip
    print_table(
        Console(),
        [("kernel", "left"), ("shape", "left"), ("instructions a multiply-add", "right"),
         ("limit", "right")],
        rows,
    )  # fmt: skip


def _taps(out: int, stride: int, pad: int, kernel: int, size: int) -> int:
    return sum(0 <= out * stride - pad + tap < size for tap in range(kernel))


def _instructions(
    call: str, *, a: int, b: int, out: int, conv: str = "0", product: str = "0",
    more: tuple[list[str], str] | None = None,
) -> int:  # fmt: skip
    """What one call takes on the emulated board."""
    board = find_board(TARGET)
    assert board is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        extra, flags = ("", []) if more is None else (more[1], more[0])
        (folder / "main.c").write_text(
            _MAIN.format(a=a, b=b, out=out, conv=conv, product=product, call=call, extra=extra)
        )
        shutil.copyfile(FOLDER / "cortex_m/mpu.h", folder / "mpu.h")
        (folder / "clock.h").write_text(f"#define CLOCK_MHZ {board.clock_mhz}u\n")
        (folder / "link.ld").write_text(link_script(board, board.ram_bytes))
        names = ("conv", "conv_weight", "matmul", "pointwise", "arithmetic", "bytes")
        sources = [str(SOURCES / f"{name}.c") for name in names]
        sources += [str(FOLDER / "cortex_m/start.c"), str(FOLDER / TARGET / "limit.c"), "main.c"]
        command = [
            CROSS_COMPILER, *board_flags(board).split(), f"-I{SOURCES}", "-I.", *flags,
            *LINK.split(), *sources, "-lgcc", "-o", "x.elf",
        ]  # fmt: skip
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise PoetError(built.stderr[-2000:])
        done = subprocess.run(
            emulator_command(board, "x.elf"), cwd=folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    return int(done.stderr.split()[0])


def _cmsis() -> tuple[list[str], str] | None:
    """Flags and declarations for CMSIS-DSP, where it is unpacked."""
    found = next(iter(CMSIS.rglob("arm_mat_mult_f32.c")), None)
    if found is None:
        return None
    include = next(iter(CMSIS.rglob("arm_math.h"))).parent
    flags = [f"-I{include}", f"-I{include.parent / 'PrivateInclude'}"]
    # The package's own switch for compilers without ARM's header files, and no warnings of ours.
    return [
        *flags,
        "-D__GNUC_PYTHON__",
        "-DARM_MATH_LOOPUNROLL",
        "-w",
        str(found),
    ], "#include <arm_math.h>"


def arenas() -> None:
    rows = []
    for model, optimizer, ram in PLANS:
        plan = poet.plan(
            capture_named(model, parse_optimizer(optimizer)), device="nrf52840", ram=ram,
            params="paged", time_limit=5,
        )  # fmt: skip
        found = placed(plan, None)
        assert plan.peak_bytes is not None
        rows.append([
            model, ram, str(len(found.lives.blocks)), f"{plan.peak_bytes:,}",
            f"{least_bytes(found.lives.blocks):,}", f"{found.placement.arena_bytes:,}",
            f"{found.placement.arena_bytes / plan.peak_bytes:.4f}",
        ])  # fmt: skip
    print_table(
        Console(),
        [("model", "left"), ("RAM", "right"), ("blocks", "right"), ("planned peak", "right"),
         ("with alignment", "right"), ("arena", "right"), ("÷ peak (1.02)", "right")],
        rows,
    )  # fmt: skip


PLANS = (
    ("mlp?size=8&hidden=16&layers=1", "sgd?momentum=0.9", "12 KB"),
    ("lenet?size=16", "sgd?momentum=0.9", "122 KB"),
    ("lenet?size=16", "sgd", "80 KB"),
    ("tests/mcu/nets.py:resnet8", "sgd?momentum=0.9", "122 KB"),
    ("tests/mcu/nets.py:resnet8", "sgd", "100 KB"),
    ("tests/mcu/nets.py:separable", "sgd?momentum=0.9", "44 KB"),
    ("tests/mcu/nets.py:separable", "sgd", "60 KB"),
    ("tests/mcu/nets.py:mixed", "sgd?momentum=0.9", "10 KB"),
    ("resnet18-cifar?norm_eval=1", "sgd", "20 MB"),
    ("mobilenetv2-cifar", "sgd", "3 MB"),
)


BENCHMARKS = {"firmware-kernels": kernels, "firmware-arenas": arenas}
