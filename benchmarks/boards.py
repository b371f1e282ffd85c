"""Large networks on small boards: planned, emitted, trained on the emulator, held to PyTorch.

`python -m benchmarks firmware-resnet18` (or `make demo-resnet18-m4`) trains ResNet-18 on an
emulated nRF52840; `firmware-bert` does BERT-tiny on two boards. Each learns something that it has
not seen (`benchmarks.lessons`), writes its row to build/boards, and build/boards/results.md from
all rows there; docs/results-firmware.md has those of one machine.

Limits: weights within 1e-3 of their change from PyTorch's, error against float64 at most three
times PyTorch's, the same bits as on the host, no link with a byte less than the image takes, a
fault past the end of RAM, and held-out accuracy at least 20 points higher after than before.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.lessons import HELD_OUT, accuracy, network_of, question, write_samples
from poet.errors import PoetError
from poet.firmware.boards import find_board
from poet.firmware.emulate.emulation import build, emulate, image_ram
from poet.firmware.write.folder import read_folder
from poet.referee.replay import check
from poet.values.quantities import amount_text

HOME = Path("build/boards")
PAGE = HOME / "results.md"
POET = str(Path(sys.executable).with_name("poet"))


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A network on a board: a step a sample. `prepared` are the words that train weights to begin
    with; without, they are those of a seed."""

    key: str
    title: str
    model: str
    board: str
    ram: str | None = None
    lr: float
    steps: int
    turn: int
    """Steps whose losses are averaged."""
    prepared: tuple[str, ...] = ()


RESNET = Case(
    key="resnet18",
    title="ResNet-18, 32×32 images, all weights and affine parameters",
    model="resnet18-cifar?batch=1&norm_eval=1",
    board="nrf52840",
    lr=0.0005,
    steps=96,
    turn=24,
    prepared=("resnet18-cifar?batch=16", "--steps", "40"),
)
BERTS = (
    Case(
        key="bert-tiny-an547", title="BERT-tiny, 64 tokens", model="bert-tiny?seq=64&batch=4",
        board="mps3-an547", ram="504000", lr=0.02, steps=48, turn=12,
    ),
    Case(
        key="bert-tiny-nrf52840", title="BERT-tiny, 32 tokens", model="bert-tiny?seq=32&batch=4",
        board="nrf52840", lr=0.02, steps=48, turn=12,
    ),
)  # fmt: skip
MOST_APART, MOST_ERROR, LEAST_LEARNT = 1e-3, 3.0, 0.2


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a case showed."""

    case: Case
    commands: list[str]
    parameter_count: int
    parameter_bytes: int
    instructions_planned: int
    gap: float | None
    outcome: dict[str, Any]
    accuracy: tuple[float, float]
    """Of held-out samples, before and after."""
    host_equal: bool
    arena_bytes: int
    card_bytes: int
    short: str
    past: str
    compute_seconds: float
    transfer_seconds: float


def resnet() -> None:
    _run_all((RESNET,))


def berts() -> None:
    _run_all(BERTS)


def _run_all(cases: tuple[Case, ...]) -> None:
    missed = [f"{case.title}: {text}" for case in cases for text in _run(case)]
    _write_page()
    if missed:
        raise SystemExit(f"a limit is not met: {'; '.join(missed)}")


def _run(case: Case) -> list[str]:
    """What of its limits it missed."""
    home = HOME / case.key
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    commands: list[str] = []

    def poet(*words: str, json_out: bool = False) -> Any:
        commands.append(" ".join(["poet", *(f'"{w}"' if set("?&") & set(w) else w for w in words)]))
        print(f"$ {commands[-1]}", flush=True)
        done = subprocess.run(
            [POET, *words, *(["--json"] if json_out else [])],
            stdout=subprocess.PIPE if json_out else None, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise PoetError(f"it ended with exit code {done.returncode}")
        return json.loads(done.stdout) if json_out else None

    plan_file, folder, host = home / "plan.json", home / "firmware", home / "host"
    more: list[str] = []
    if case.prepared:
        weights = home / "weights.safetensors"
        poet("train", *case.prepared, "--save", str(weights))
        more = ["--weights", str(weights)]
    ram = [] if case.ram is None else ["--ram", case.ram]
    poet(
        "plan", case.model, "--device", "nrf52840", *ram, "--time-limit", "60", "-o", str(plan_file)
    )
    samples = home / "samples.safetensors"
    write_samples(case.model, samples, case.steps)
    how = ["--data", str(samples), "--steps", str(case.steps), "--lr", str(case.lr), *more]
    poet("emit", str(plan_file), "--target", case.board, "-o", str(folder), *how)
    made, plan = read_folder(folder)
    before = accuracy(case.model, network_of(folder, made, plan))
    print(f"{HELD_OUT} held-out samples ({question(case.model)}): {before:.1%} right")
    outcome = poet("emulate", str(folder), "--time-limit", "3600", json_out=True)
    print(f"loss, {case.turn} steps at a time: {', '.join(_turns(case, outcome))}")
    after = accuracy(case.model, network_of(folder, made, plan))
    print(f"the same held-out samples: {after:.1%} right")
    poet("emit", str(folder / "plan.json"), "-o", str(host), *how)
    emulate(host)
    same = (host / "card.img").read_bytes() == (folder / "card.img").read_bytes()
    parameters = [t for i, t in enumerate(plan.graph.tensors)
                  if t.role == "parameter" and plan.graph.producer[i] is None]  # fmt: skip
    verdict = check(plan)
    row = Row(
        case=case,
        commands=commands[:-1],
        parameter_count=sum(t.nbytes // 4 for t in parameters),
        parameter_bytes=sum(t.nbytes for t in parameters),
        instructions_planned=len(plan.schedule),
        gap=plan.gap,
        outcome=outcome,
        accuracy=(before, after),
        host_equal=same,
        arena_bytes=made.arena_bytes,
        card_bytes=made.card.image_bytes,
        short=_a_byte_less(folder),
        past=_past_the_end(folder),
        compute_seconds=verdict.compute_seconds,
        transfer_seconds=verdict.transfer_seconds,
    )
    (HOME / f"{case.key}.json").write_bytes(msgspec.json.encode(row))
    print(f"the same bits as on the host: {'yes' if same else 'NO'}")
    print(f"with a byte less than the image takes: {row.short}")
    print(f"with an arena that ends past the board's RAM: {row.past}")
    limits = {
        "weights apart": outcome["difference"] <= MOST_APART,
        "error against float64": outcome["error_ratio"] <= MOST_ERROR,
        "the host's bits": same,
        "a byte less": "overflowed" in row.short,
        "the end of RAM": "fault" in row.past,
        "accuracy": after >= before + LEAST_LEARNT,
    }
    return [name for name, is_met in limits.items() if not is_met]


def _turns(case: Case, outcome: dict[str, Any]) -> list[str]:
    losses = outcome["losses"]
    turns = [losses[n : n + case.turn] for n in range(0, case.steps, case.turn)]
    return [f"{sum(turn) / len(turn):.4f}" for turn in turns]


def _a_byte_less(folder: Path) -> str:
    """What the linker says of an image with a byte less than it takes."""
    made, _ = read_folder(folder)
    build(folder, made)
    ram, script = image_ram(folder, made), folder / "link.ld"
    kept = script.read_text()
    script.write_text(
        kept.replace(f"LENGTH = {ram.limit_bytes}\n", f"LENGTH = {ram.used_bytes - 1}\n")
    )
    try:
        build(folder, made, "-B")
    except PoetError as error:
        lines = [line for line in str(error).splitlines() if "overflowed" in line]
        said = lines[0].split("ld: ")[-1].strip() if lines else str(error)[-200:]
        return said.replace("`", "'")
    finally:
        script.write_text(kept)
    return "it links, which it must not"


def _past_the_end(folder: Path) -> str:
    """What happens when the arena's last bytes lie past the end of RAM."""
    made, _ = read_folder(folder)
    board, script = find_board(made.target), folder / "link.ld"
    assert board is not None
    kept = script.read_text()
    end = board.ram_origin + board.ram_bytes
    begin = (end - made.arena_bytes) // 8 * 8 + 8
    line = next(line for line in kept.splitlines() if "RAM (rwx)" in line)
    text = kept.replace(line, f"    RAM (rwx) : ORIGIN = {hex(board.ram_origin)}, LENGTH = 2M")
    text = text.replace(".arena (NOLOAD) : ALIGN(8) {", f".arena {hex(begin)} (NOLOAD) : {{")
    script.write_text(text)
    try:
        emulate(folder, steps=1, edited=True)
    except PoetError as error:
        return next((x for x in str(error).splitlines() if "fault" in x), str(error)[-200:]).strip()
    finally:
        script.write_text(kept)
    return "nothing, which is wrong"


def _write_page() -> None:
    files = [HOME / f"{case.key}.json" for case in (RESNET, *BERTS)]
    rows = [msgspec.json.decode(f.read_bytes(), type=Row) for f in files if f.exists()]
    PAGE.write_text(_INTRODUCTION + "\n".join(_section(row) for row in rows) + _PAPER)
    print(f"{PAGE}: {len(rows)} networks")


def _section(row: Row) -> str:
    out, case = row.outcome, row.case
    board = find_board(case.board)
    assert board is not None
    before, after = row.accuracy
    clock = 64e6 if case.board == "nrf52840" else 32e6
    lines = [
        ("parameters", f"{row.parameter_count:,} ({row.parameter_bytes:,} bytes), all trained"),
        ("RAM of the image", f"{out['ram_bytes']:,} of {board.ram_bytes:,} bytes: an arena of "
         f"{row.arena_bytes:,}, {out['stack_bytes']:,} of 4,096 bytes of stack used, variables"),
        ("tensors at the peak", f"{out['peak_bytes']:,} bytes, as planned"),
        ("a byte less than the image takes", f"does not link: `{row.short}`"),
        ("an arena that ends past the RAM", f"`{row.past}`"),
        (f"right of {HELD_OUT} held-out samples, {question(case.model)}",
         f"{before:.1%} before, {after:.1%} after {case.steps} steps"),
        ("loss", f"{', '.join(_turns(case, out))}: means over {case.turn} steps each"),
        ("instructions a step", f"{out['instructions']:,} "
         f"({out['instructions'] / clock:.1f} s at {clock / 1e6:.0f} MHz and one a cycle)"),
        ("card traffic a step", f"{out['streamed_bytes']:,} bytes of parameters in tiles; "
         f"{out['page_ins']} pages, {out['page_in_bytes']:,} bytes, in and "
         f"{out['page_outs']}, {out['page_out_bytes']:,}, out; a card of {row.card_bytes:,} bytes"),
        ("predicted on the nRF52840", f"{amount_text(out['seconds'], 's')} "
         f"({amount_text(row.compute_seconds, 's')} compute, "
         f"{amount_text(row.transfer_seconds, 's')} card), "
         f"{amount_text(out['joules'], 'J')} a step"),
        ("plan", f"{row.instructions_planned} instructions"
         + (f", gap {row.gap:.2%}" if row.gap is not None else "")),
        (f"weights against PyTorch after {case.steps} steps",
         f"{out['difference']:.1e} of their change apart (limit 1e-3)"),
        ("error against float64", f"{out['error_ratio']:.2f} times PyTorch's (limit 3)"),
        ("card image against the host's", "bit-equal" if row.host_equal else "NOT bit-equal"),
    ]  # fmt: skip
    table = "\n".join(f"| {label} | {text} |" for label, text in lines)
    commands = "\n".join(row.commands)
    return (
        f"## {case.title}, on {case.board}\n\n{board.title}.\n\n| | |\n|---|---|\n{table}\n\n"
        f"```\n{commands}\n```\n"
    )


_INTRODUCTION = """\
# Large networks on small boards

Trained on emulated boards with the boards' real RAM, made by `make demo-resnet18-m4` and `python
-m benchmarks firmware-bert`. Parameters live on the card; where they do not fit in RAM they are
read, multiplied with, updated and written back in tiles. Samples are real, and ask for something
that the weights to begin with have not seen: ResNet-18 learnt upright digits for 40 steps and gets
them turned by a quarter; BERT begins with a seed's weights and is asked whether a passage is in
capitals. Seconds and joules are what the plan predicts for a real board, by the rates of its
file; instructions, transfers, RAM and weights are counted on the emulated one.

"""
_PAPER = """
## What the paper says

POET (Patil, Jain, Dutta, Stoica, Gonzalez, ICML 2022) says that ResNet-18 and BERT are fine-tuned
within the memory of a Cortex-M class device, the nRF52840 with 256 KB among its boards. Its
released code plans activations alone: parameters, weight gradients, optimizer state and workspace
are not in its budget, and with whole ops its smallest schedule for ResNet-18 at 32×32 takes
262,144 bytes, all of that board's RAM. It prints matrices and runs nothing, so there is no
trained network to compare with. Above, everything is in the budget.
"""
BENCHMARKS = {"firmware-resnet18": resnet, "firmware-bert": berts}
