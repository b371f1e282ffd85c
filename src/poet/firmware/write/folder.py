"""The folder: all files of a firmware, and what they say of themselves (`firmware.json`)."""

import filecmp
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from poet.calls.loops import loops
from poet.errors import Infeasible, PoetError
from poet.firmware.boards import CORTEX_M, FOLDER, Board, emulator_command, find_board
from poet.firmware.card.image import IN_FLASH, Arrays
from poet.firmware.card.layout import (
    CardLayout,
    InFlash,
    card_layout,
    inputs_of,
    lasting,
    scalars,
)
from poet.firmware.packages import place
from poet.firmware.place.arena import Placed, check, placed
from poet.firmware.write.flash import check_flash, flash_c, flash_of, tensors_in, write_tensors
from poet.firmware.write.source import Source, source_of
from poet.firmware.write.text import KERNEL_HEADERS, LIBRARY, SOURCES
from poet.referee.refusing import refuse_if_wrong
from poet.referee.replay import check as replayed
from poet.values.files import read_json, write_json
from poet.values.plan import Plan, in_turns
from poet.values.schedule import PageOut

MANIFEST = "firmware.json"
OWN = (
    "poet.h",
    "step.h",
    "poet.c",
    "failures.c",
    "format.c",
    "card.c",
    "store.c",
    "main.c",
    "board.h",
)
"""The library, and the example on top of it."""
WRITTEN = ("step.c", "flash.c")
"""What is written for a network."""
OPTIMIZE = "-O2"
SAVE_EVERY = 10
FLAGS = f"-std=c11 {OPTIMIZE} -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror"
LINK = "-nostdlib -T link.ld -Wl,--gc-sections"
ON_BOARD = (
    "-ffreestanding -fno-tree-loop-distribute-patterns -ffunction-sections -fdata-sections "
    "-DPOET_ARENA_SECTION=.arena"
)


class Firmware(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-firmware/1",
):
    """What a folder was made for, and what is planned to happen in a step of it.

    Figures are of the plan's schedule with transfers one at a time: the C waits for each, on boards
    that could do otherwise too.
    """

    target: str
    arena_bytes: int
    arena_limit_bytes: int | None = None
    """What the addresses were looked for in."""
    planned_bytes: int
    """The peak of the plan, without gaps between tensors."""
    ram_bytes: int | None
    page_ins: int
    page_in_bytes: int
    page_outs: int
    page_out_bytes: int
    streamed_in_bytes: int = 0
    streamed_out_bytes: int = 0
    names_rows: bool = False
    """Whether rows are streamed that indices name: then those are the most bytes."""
    seconds: float
    joules: float
    steps: int
    """The steps that a new card asks for."""
    learning_rate: float
    save_every: int
    """After how many steps each it saves a network that lives in RAM; 0: when it is done."""
    card: CardLayout
    in_flash: InFlash = "none"
    flash_bytes: int = 0
    """Of constant data, without the code."""
    package: str | None = None
    """Whose folder this is, if it is one of `poet.firmware.packages`."""

    @property
    def fragmentation(self) -> float:
        return self.arena_bytes / self.planned_bytes if self.planned_bytes else 1.0


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which becomes this one when all has gone well.

    If this one is there already, files of the same names are replaced in the end, and others stay.
    """
    final = folder.absolute()
    home = next(each for each in (final, *final.parents) if each.is_dir())
    made = home / f".{final.name[:64]}.{secrets.token_hex(4)}"
    try:
        made.mkdir()
        try:
            yield made
            if home == final:
                _replace_all(made, final)
            else:
                final.parent.mkdir(parents=True, exist_ok=True)
                made.rename(final)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise PoetError(f"cannot write {folder}: {error.strerror or error}") from error


def _replace_all(made: Path, final: Path) -> None:
    """Move each file to its place, when it is known that none of the places is taken otherwise."""
    files = [file.relative_to(made) for file in sorted(made.rglob("*")) if file.is_file()]
    for file in files:
        if (final / file).is_dir():
            raise PoetError(f"{final / file} is a folder, and a file is to be written there")
        for folder in list(file.parents)[:-1]:
            if (final / folder).is_symlink() or (final / folder).is_file():
                raise PoetError(f"{final / folder} is no folder, and one is to be written there")
    for file in files:
        (final / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / file, final / file)


def write_folder(
    folder: Path,
    plan: Plan,
    board: Board | None,
    found: Placed,
    limit: int | None,
    card: CardLayout,
    steps: int,
    lr: float,
    save_every: int = SAVE_EVERY,
    package: str | None = None,
    in_flash: InFlash = "none",
    tensors: Arrays | None = None,
) -> Firmware:
    """Everything but the card, into a folder that exists. `limit` is the most for the arena;
    `tensors` are the first values, where some are in flash."""
    check(found.lives.blocks, found.placement, 2**32 if limit is None else limit)
    flash = flash_of(plan.graph, card, in_flash, tensors or {})
    check_flash(flash, board)
    source = source_of(plan, found, card, save_every, flash.firsts)
    (folder / "flash.c").write_text(flash_c(flash))
    write_tensors(flash, plan.graph, folder)
    (folder / "step.c").write_text(source.step_c)
    (folder / "memory.h").write_text(source.memory_h)
    (folder / "network.h").write_text(source.network_h)
    kernels = _needed(source)
    for home, names in ((SOURCES, kernels), (LIBRARY, OWN)):
        for name in names:
            shutil.copyfile(home / name, folder / name)
    names = sorted([*kernels, *OWN])
    ram = None
    if board is None:
        shutil.copyfile(FOLDER / "host/board.c", folder / "board.c")
        (folder / "Makefile").write_text(_makefile(None, [*names, *WRITTEN, "board.c"]))
    else:
        assert limit is not None
        ram = limit + board.reserved_bytes
        limits = (FOLDER / "cortex_m/mpu.h", FOLDER / f"{board.name}/limit.c")
        for file in (*CORTEX_M, *limits):
            shutil.copyfile(file, folder / file.name)
        shutil.copyfile(SOURCES / "bytes.c", folder / "bytes.c")
        (folder / "clock.h").write_text(
            f"/* {board.title} */\n#define CLOCK_MHZ {board.clock_mhz}u\n"
        )
        (folder / "link.ld").write_text(link_script(board, ram))
        own = [*WRITTEN, "start.c", "board.c", "limit.c", "bytes.c"]
        (folder / "Makefile").write_text(_makefile(board, [*names, *own]))
    step = replayed(in_turns(plan))  # transfers as the C does them
    made = Firmware(
        target="host" if board is None else board.name,
        arena_bytes=found.placement.arena_bytes,
        arena_limit_bytes=limit,
        planned_bytes=step.peak_bytes,
        ram_bytes=ram,
        page_ins=step.page_ins,
        page_in_bytes=step.page_in_bytes,
        page_outs=step.page_outs,
        page_out_bytes=step.page_out_bytes,
        streamed_in_bytes=step.streamed_in_bytes,
        streamed_out_bytes=step.streamed_out_bytes,
        names_rows=any(
            loop.named_rows for run in plan.streamed_runs for loop in loops(plan.graph, run.op)
        ),
        seconds=step.seconds,
        joules=step.joules,
        steps=steps,
        learning_rate=lr,
        save_every=save_every,
        card=card,
        in_flash=in_flash,
        flash_bytes=len(flash.content),
        package=package,
    )
    write_json(plan, folder / "plan.json", force=True)
    write_json(made, folder / MANIFEST, force=True)
    return made


def write_program(folder: Path, board: Board, source: Source) -> None:
    """A program over the board and the kernels it calls; its Makefile makes `train.elf`."""
    (folder / "main.c").write_text(source.step_c)
    kernels = _needed(source)
    for home, names in ((SOURCES, kernels), (LIBRARY, ("board.h", "poet.h", "step.h"))):
        for name in names:
            shutil.copyfile(home / name, folder / name)
    for file in CORTEX_M:
        shutil.copyfile(file, folder / file.name)
    shutil.copyfile(SOURCES / "bytes.c", folder / "bytes.c")
    (folder / "limit.c").write_text("void limit_ram(void);\nvoid limit_ram(void)\n{\n}\n")
    (folder / "clock.h").write_text(f"#define CLOCK_MHZ {board.clock_mhz}u\n")
    (folder / "link.ld").write_text(link_script(board, board.ram_bytes))
    own = ["start.c", "board.c", "limit.c", "bytes.c"]
    (folder / "Makefile").write_text(_makefile(board, sorted([*kernels, *own])))


def check_plan(plan: Plan) -> None:
    """Refuse a plan that C cannot be written for."""
    if not plan.schedule:
        text = f"the plan has no schedule: {plan.reason or plan.status}"
        raise Infeasible(text, proven=plan.status == "infeasible")
    refuse_if_wrong(plan)
    written = {s.tensor for s in plan.schedule if isinstance(s, PageOut)}
    for i in inputs_of(plan.graph):
        if i in written and plan.budget.start[i] == "store":
            where = plan.graph.tensor_text(i)
            raise PoetError(f"{where} starts in the store; the plan writes it there again")
    for i in scalars(plan.graph).values():
        if plan.budget.start[i] == "store":
            raise PoetError(f"{plan.graph.tensor_text(i)} starts in the store; C has it in RAM")


def write_again(folder: Path, new: Path) -> Firmware:
    """What `poet emit` writes for the plan of a folder, into a new one; refused if it differs.

    So nothing of the folder need be run: it says which C is meant, and this is that C.
    """
    made, plan = read_folder(folder)
    check_plan(plan)
    limit, board = made.arena_limit_bytes, find_board(made.target)
    if board is not None and limit is None:
        raise PoetError(f"{folder / MANIFEST} says nothing of the arena's limit")
    card = card_layout(plan, made.card.samples, made.in_flash)
    tensors = _firsts(folder, plan, made)
    wrote = write_folder(
        new, plan, board, placed(plan, limit), limit, card, made.steps, made.learning_rate,
        made.save_every, made.package, made.in_flash, tensors,
    )  # fmt: skip
    for file in sorted(new.iterdir()):
        there = file.name if made.package is None else place(file.name)
        if there is not None and not is_same(file, folder / there):
            raise PoetError(
                f"{folder / there} is not what this POET writes for {folder / 'plan.json'}: "
                "it was edited, or written by another version. Emit it again, or, if you trust all "
                "of it, run it as it is: edited=True"
            )
    return wrote


def _firsts(folder: Path, plan: Plan, made: Firmware) -> Arrays:
    """The first values that are in a folder's flash, by its own word."""
    found = tensors_in(folder, plan.graph, made.in_flash)
    wanted = lasting(plan.graph) if made.in_flash == "all" else made.card.flash
    for i in wanted:
        state = plan.graph.tensors[i].role == "optimizer_state" and i not in made.card.flash
        if i not in found and not state:
            where = plan.graph.tensor_text(i)
            raise PoetError(f"{folder / IN_FLASH} does not have {where}, which is in flash")
    return found


def is_same(one: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def read_firmware(folder: Path) -> Firmware:
    if not (folder / MANIFEST).exists():
        raise PoetError(f"{folder} is not a folder that poet emit wrote: it has no {MANIFEST}")
    return read_json(folder / MANIFEST, Firmware)


def read_folder(folder: Path) -> tuple[Firmware, Plan]:
    """What the folder says of itself, and the plan that was placed."""
    made, plan = read_firmware(folder), read_json(folder / "plan.json", Plan)
    if made.card.samples < 1 or made.card != card_layout(plan, made.card.samples, made.in_flash):
        raise PoetError(f"the card of {folder / MANIFEST} is not that of {folder / 'plan.json'}")
    return made, plan


def _needed(source: Source) -> list[str]:
    """The files of the kernels that are called, and of what those call in turn or include."""
    home = {}
    texts = {file.name: file.read_text() for file in SOURCES.glob("*.c")}
    for name, text in texts.items():
        for kernel in re.findall(r"^(?:void|float|int32_t) (\w+)\(", text, re.MULTILINE):
            home[kernel] = name
        for function in re.findall(r"^FUNCTION\((\w+)", text, re.MULTILINE):
            home[f"poet_{function}"] = name
    wanted, todo = (
        set(KERNEL_HEADERS),
        [home[name] for name in sorted(source.kernels & home.keys())],
    )
    while todo:
        name = todo.pop()
        if name in wanted:
            continue
        wanted |= {name, *re.findall(r'^#include "(\w+\.h)"', texts[name], re.MULTILINE)}
        called = set(re.findall(r"\b(\w+)\(", texts[name]))
        todo += [home[kernel] for kernel in sorted(called & home.keys()) if home[kernel] != name]
    return sorted(wanted)


def _makefile(board: Board | None, names: list[str]) -> str:
    sources = " ".join(name for name in names if name.endswith(".c") and name != "main.c")
    if board is None:
        return _MAKEFILE.format(
            what="this computer", compiler="CC ?= cc", flags=FLAGS, sources=sources,
            product="train", link="", beside="", libraries="", run="./train",
        )  # fmt: skip
    return _MAKEFILE.format(
        what=board.title,
        compiler="CROSS ?= arm-none-eabi-\nCC := $(CROSS)gcc",
        flags=board_flags(board),
        sources=sources,
        product="train.elf",
        link=f" {LINK} -Wl,-Map=train.map",
        beside=" link.ld",
        libraries=" -lgcc",
        run=shlex.join(emulator_command(board, "train.elf")),
    )


def board_flags(board: Board) -> str:
    """What the cross compiler is told."""
    return f"-mthumb {' '.join(board.cpu)} {FLAGS} {ON_BOARD}"


_MAKEFILE = """\
# Training firmware for {what}.
{compiler}
CFLAGS := {flags} -I. $(EXTRA)
MAIN ?= main.c
SOURCES := {sources} $(MAIN)

{product}: $(SOURCES) $(wildcard *.h){beside}
\t$(CC) $(CFLAGS){link} -o $@ $(SOURCES){libraries}

run: {product}
\t{run}

clean:
\trm -f {product} train.map

.PHONY: clean run
"""


def link_script(board: Board, ram_bytes: int) -> str:
    """The linker script that gives an image so much RAM."""
    text = (FOLDER / "cortex_m" / "link.ld").read_text()
    for name, value in {
        "flash_origin": hex(board.flash_origin),
        "flash_bytes": board.flash_bytes,
        "ram_origin": hex(board.ram_origin),
        "ram_bytes": ram_bytes,
        "stack_bytes": board.stack_bytes,
    }.items():
        text = text.replace(f"@{name}@", str(value))
    return text
