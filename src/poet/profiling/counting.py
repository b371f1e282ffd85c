"""Counting: what each call of a model takes on a microcontroller, without the board.

Calls that are alike (kernel and shapes) are run once, in the emulator, which counts instructions;
the board's file says what an instruction takes. What is too large for the emulated board's memory
goes by the instructions a FLOP of calls of its kind. Ops that may run piece by piece are
counted so as well (`tiled`). With ticks of a real board (`measured`) each call takes its share of
what its op took there.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from poet.calls.operands import works
from poet.calls.signature import shapes_text, signature
from poet.calls.sizes import SizedCall, sized_calls
from poet.costs.analytic import call_seconds
from poet.costs.classes import class_of
from poet.costs.flops import call_flops
from poet.errors import PoetError
from poet.firmware.boards import Board, find_board, targets
from poet.firmware.emulate.counting import compiler_version, count_instructions, roomy
from poet.firmware.write.probe import Probe
from poet.planning.problem import Problem
from poet.profiling.tiled import tiled_costs, tiled_probes
from poet.values.board_profile import BoardProfile, CallCost, Origin
from poet.values.device import Device
from poet.values.graph import Graph
from poet.values.progress import CountProgress

_Kinds = tuple[Probe, SizedCall]


def graphs_of(problem: Problem) -> list[Graph]:
    """Every graph that a model may be planned as."""
    found = [problem.graph, problem.fused]
    if problem.in_pieces is not None:
        found.append(problem.in_pieces)
    return found


def counting_board(device: Device) -> Board:
    """The emulated board that a device's kernels are counted on, with room for them."""
    if device.name not in targets():
        raise PoetError(
            f"there is no firmware for {device.name or device.title}, so its kernels cannot be "
            f"counted; there is for {', '.join(targets()[1:])}"
        )
    try:
        device.instruction_seconds()
    except ValueError as error:
        raise PoetError(str(error)) from None
    board = find_board(device.name)
    assert board is not None
    return roomy(board)


def count(
    problem: Problem | Graph, device: Device, progress: CountProgress | None = None
) -> BoardProfile:
    """A profile of a model's calls on a board that there is firmware for."""
    graphs = [problem] if isinstance(problem, Graph) else graphs_of(problem)
    board, report = counting_board(device), progress or (lambda what, done, count: None)
    alike = _alike(graphs)
    small = {key: probe for key, (probe, _) in alike.items() if _has_room(probe, board)}
    report("calls", 0, len(small))
    counts = count_instructions(
        board, list(small.values()), progress=lambda done: report("calls", done, len(small))
    )
    known: dict[str, float] = dict(zip(small, map(float, counts), strict=True))
    in_pieces = problem if isinstance(problem, Graph) else problem.in_pieces
    tiled = {} if in_pieces is None else tiled_probes(in_pieces, known)
    tiled = {key: each for key, each in tiled.items() if _has_room(each[0], board)}
    report("ops in tiles", 0, len(tiled))
    counts = count_instructions(
        board, [probe for probe, _ in tiled.values()],
        progress=lambda done: report("ops in tiles", done, len(tiled)),
    )  # fmt: skip
    tiled_counts = dict(zip(tiled, map(float, counts), strict=True))
    fitted = _fitted(alike, known, device)
    calls = []
    for key, (probe, _) in alike.items():
        origin: Origin = "counted" if key in known else "fitted"
        calls.append(
            CallCost(
                signature=key, kind=probe.works[0].kind, shapes=shapes_text(probe.works[0]),
                origin=origin, instructions=known.get(key, fitted.get(key)),
            )
        )  # fmt: skip
    return BoardProfile(
        model=graphs[0].name, device=device, compiler=compiler_version(), calls=tuple(calls),
        tiled=tiled_costs(tiled, tiled_counts),
    )  # fmt: skip


def measured(
    graph: Graph, device: Device, op_seconds: Mapping[int, float], base: BoardProfile | None = None
) -> BoardProfile:
    """A profile of what a board itself measured: the seconds of ops, by their numbers in a graph.

    An op's seconds are shared by its calls as `base`, or else the board's rates, would have it.
    Calls of ops that were not measured take as many times that as the others did on the whole.
    """
    if not op_seconds:
        raise PoetError("no op was measured")
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    expected: dict[str, tuple[Probe, float]] = {}
    before = after = 0.0
    for k in range(len(graph.ops)):
        parts = [
            (signature(p.works[0]), p, _expected(p, call, device, base))
            for p, call in _calls(graph, k)
        ]
        total = sum(seconds for _, _, seconds in parts)
        for key, probe, seconds in parts:
            expected[key] = probe, seconds
            if k in op_seconds and total > 0:
                shares[key].append((seconds, op_seconds[k] / total))
        if k in op_seconds:
            before, after = before + total, after + op_seconds[k]
    whole = after / before if before else 1.0
    calls = []
    for key, (probe, seconds) in expected.items():
        found = shares.get(key)
        origin: Origin = "fitted" if found is None else "measured"
        factor = whole if found is None else sum(f for _, f in found) / len(found)
        calls.append(
            CallCost(
                signature=key, kind=probe.works[0].kind, shapes=shapes_text(probe.works[0]),
                origin=origin, seconds=seconds * factor,
            )
        )  # fmt: skip
    compiler = "measured on the board" if base is None else base.compiler
    return BoardProfile(model=graph.name, device=device, compiler=compiler, calls=tuple(calls))


def _expected(probe: Probe, call: SizedCall, device: Device, base: BoardProfile | None) -> float:
    known = None if base is None else base.by_signature.get(signature(probe.works[0]))
    if base is not None and known is not None:
        return base.seconds(known)
    return call_seconds(call, device)


def alike_calls(graphs: Iterable[Graph]) -> dict[str, SizedCall]:
    """One call of each kind and shapes, by signature."""
    return {key: call for key, (_, call) in _alike(graphs).items()}


def _alike(graphs: Iterable[Graph]) -> dict[str, _Kinds]:
    """One call of each kind and shapes."""
    found: dict[str, _Kinds] = {}
    for graph in graphs:
        for k in range(len(graph.ops)):
            for probe, call in _calls(graph, k):
                found.setdefault(signature(probe.works[0]), (probe, call))
    return found


def _calls(graph: Graph, k: int) -> Iterator[_Kinds]:
    sized = list(sized_calls(graph, k))
    for work in works(graph, k):
        yield Probe(graph, k, (work,)), sized[work.number]


def _has_room(probe: Probe, board: Board) -> bool:
    return probe.arena_bytes + board.reserved_bytes <= board.ram_bytes


def _fitted(
    alike: Mapping[str, _Kinds], known: Mapping[str, float], device: Device
) -> dict[str, float]:
    """Instructions of the others: as many a FLOP as calls of the kind, else of the class, took."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for key, instructions in known.items():
        _, call = alike[key]
        flops = max(1, call_flops(call), call.result.elements)
        ratios[call.family].append(instructions / flops)
        ratios[class_of(call)].append(instructions / flops)
    found = {}
    for key, (_, call) in alike.items():
        if key in known:
            continue
        like = ratios.get(call.family) or ratios.get(class_of(call))
        flops = max(1, call_flops(call), call.result.elements)
        if like is not None:
            found[key] = median(like) * flops
        else:
            found[key] = call_seconds(call, device) / device.instruction_seconds()
    return found
