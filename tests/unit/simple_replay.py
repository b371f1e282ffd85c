"""A second, deliberately simple referee, written for the tests from the rules alone.

It shares no code with `poet.referee`: plain dicts, no incremental sums, and RAM found by looking at
every moment and adding up whatever is held then. Slow, short, easy to read against the rules.

Order at one instant, under overlap: what a finished transfer or op held is released first; then
things happen in the list's order. What brings bytes is issued when there is room for them.
"""

from dataclasses import dataclass, field

from poet import Compute, Free, PageIn, PageOut, Plan

START = (0.0, -1)
FOREVER = (float("inf"), 0)
Instant = tuple[float, int]


@dataclass
class Held:
    """Bytes that are in RAM from one instant up to, not including, another."""

    nbytes: int
    since: Instant
    until: Instant = FOREVER
    by: int | None = None


@dataclass
class Result:
    violation: tuple[int | None, str, int | None, int | None] | None = None
    joules: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0
    store_bytes: int = 0
    held: list[Held] = field(default_factory=list)


class Stop(Exception):
    pass


Places = dict[int, str]


def simple_replay(plan: Plan, told: list[Places] | None = None) -> Result:
    """Replay a plan. `told` is given where each tensor is before each instruction and at the end:
    `ram`, `store` or `both`."""
    graph, costs, budget, result = plan.graph, plan.costs, plan.budget, Result()
    size = [tensor.nbytes for tensor in graph.tensors]
    serial = budget.transfers == "serial"
    overlap = budget.transfers == "overlap"
    ram: dict[int, Held] = {}
    store: dict[int, int | None] = {}  # slot -> the tensor whose value is there
    coming: dict[int, tuple[float, float]] = {}  # page-in of a tensor: start, end
    leaving: dict[int, float] = {}  # page-out of a tensor: end
    slot_busy: dict[int, float] = {}
    link_busy = {"in": 0.0, "out": 0.0}
    ran: set[int] = set()
    clock = 0.0  # list time; under overlap the end of the last compute
    makespan = 0.0

    def slot(i: int) -> int:
        old = graph.tensors[i].becomes
        return i if old is None else old

    def stored(i: int) -> bool:
        return store.get(slot(i)) == i

    def tell() -> None:
        if told is not None:
            there = {i for i in store.values() if i is not None}
            told.append({i: "both" if i in there else "ram" for i in ram})
            told[-1].update({i: "store" for i in there if i not in ram})

    def found(at: int | None, rule: str, op: int | None = None, tensor: int | None = None) -> None:
        if result.violation is None:
            result.violation = (at, rule, op, tensor)

    def blame(at: int | None) -> None:
        step = None if at is None else plan.schedule[at]
        if isinstance(step, Compute):
            found(at, "ram", step.op)
        else:
            found(at, "ram", None, None if step is None else step.tensor)

    def state_rule(
        ok: bool, at: int | None, rule: str, op: int | None = None, tensor: int | None = None
    ) -> None:
        if not ok:
            found(at, rule, op, tensor)
            raise Stop

    def hold(nbytes: int, since: Instant, by: int | None) -> Held:
        held = Held(nbytes, since, by=by)
        result.held.append(held)
        return held

    def level(instant: Instant) -> int:
        return sum(h.nbytes for h in result.held if h.since <= instant < h.until)

    def check_ram_in_list(at: int | None, instant: Instant) -> None:
        if budget.ram_bytes is not None and level(instant) > budget.ram_bytes:
            blame(at)

    def when_there_is_room(at: int, since: float, nbytes: int) -> float:
        """The first moment from `since` on at which so many bytes fit, else the last release."""
        later = {h.until[0] for h in result.held if since < h.until[0] < FOREVER[0]}
        moments = sorted({since, *later})
        for moment in moments:
            if budget.ram_bytes is None or level((moment, 3 * at)) + nbytes <= budget.ram_bytes:
                return moment
        return moments[-1]

    def into_store(at: int | None, i: int) -> None:
        store[slot(i)] = i
        result.store_bytes = sum(size[s] for s in store)
        if budget.store_bytes is not None and result.store_bytes > budget.store_bytes:
            found(at, "store", None, i)

    def use_link(way: str, end: float) -> None:
        for each in ["in", "out"] if not costs.duplex else [way]:
            link_busy[each] = end

    moves: list[tuple[float, float]] = []

    def moved(since: float, seconds: float) -> float:
        moves.append((since, since + seconds / costs.transfer_speed_in_overlap))
        return moves[-1][1]

    def beside(since: float, seconds: float) -> float:
        """How long compute takes, stretch by stretch between the ends of transfers."""
        now, left = since, seconds
        while True:
            slow = any(a <= now < b for a, b in moves)
            speed = costs.compute_speed_in_overlap if slow else 1.0
            later = [x for pair in moves for x in pair if x > now]
            if not later or left / speed <= min(later) - now:
                return now + left / speed - since
            left -= (min(later) - now) * speed
            now = min(later)

    for i, place in budget.start.items():
        if place != "store":
            ram[i] = hold(size[i], START, None)
        if place != "ram":
            store[i] = i
    result.store_bytes = sum(size[s] for s in store)
    check_ram_in_list(None, START)
    if budget.store_bytes is not None and result.store_bytes > budget.store_bytes:
        found(None, "store")

    try:
        for at, step in enumerate(plan.schedule):
            tell()
            # In list time each instruction is an instant of its own; in real time, a time.
            here: Instant = (clock, 3 * at) if overlap else (float(at), 0)
            if isinstance(step, Compute):
                op, run = graph.ops[step.op], costs.ops[step.op][step.variant]
                reads = {s.tensor for s in run.reads}
                writes = {s.tensor for s in run.writes}
                again = step.op in ran
                state_rule(op.recomputable or not again, at, "not-recomputable", step.op)
                state_rule(budget.recompute or not again, at, "recompute-forbidden", step.op)
                drawn = [k for k in ran if graph.ops[k].random_state_bytes and k > step.op]
                late = op.random_state_bytes and not again and drawn
                state_rule(not late, at, "random-order", step.op)
                state_rule(budget.paging or not (reads or writes), at, "paging-forbidden", step.op)
                wanted = [i for i in op.outputs if not (stored(i) if i in writes else i in ram)]
                state_rule(bool(wanted), at, "nothing-missing", step.op)
                for i in op.inputs:
                    if i in reads:
                        state_rule(stored(i), at, "not-stored", step.op, i)
                    else:
                        state_rule(i in ram, at, "input-missing", step.op, i)
                streams = [*run.reads, *run.writes]
                seat = {p.output: p.input for p in op.in_place if p.input not in reads}
                begin, end = here, here
                if overlap:
                    t = clock
                    for i in op.inputs:
                        if i in coming and (i not in reads or i in op.consumed):
                            t = max(t, coming[i][1])
                    for i in op.consumed:
                        t = max(t, leaving.get(i, 0.0))
                    for s in streams:
                        t = max(t, slot_busy.get(slot(s.tensor), 0.0))
                    if reads:
                        t = max(t, link_busy["in"])
                    if writes:
                        t = max(t, link_busy["out"])
                    new = [i for i in op.outputs if i not in writes and i not in seat]
                    t = when_there_is_room(at, t, run.workspace_bytes + sum(size[i] for i in new))
                    in_time = sum(s.seconds for s in run.reads)
                    out_time = sum(s.seconds for s in run.writes)
                    moving = max(in_time, out_time) if costs.duplex else in_time + out_time
                    clock = t + max(beside(t, run.seconds), moving)
                    begin = (t, 3 * at)
                    end = (clock, -1) if clock > t else (clock, 3 * at + 1)
                    if reads:
                        use_link("in", clock)
                    if writes:
                        use_link("out", clock)
                    for s in streams:
                        slot_busy[slot(s.tensor)] = clock
                    makespan = max(makespan, clock)
                else:
                    end = (float(at), 1)
                    makespan += run.seconds
                    if serial:
                        makespan += sum(s.seconds for s in streams)
                result.joules += run.joules + sum(s.joules for s in streams)
                hold(run.workspace_bytes, begin, at).until = end
                kept: dict[int, Held] = {}
                for i in op.outputs:
                    if i in writes:
                        continue
                    if i in seat:
                        if i not in ram:
                            kept[i] = ram.pop(seat[i])
                    elif i in ram:
                        hold(size[i], begin, at).until = end
                    else:
                        kept[i] = hold(size[i], begin, at)
                check_ram_in_list(at, begin)
                for i in op.consumed:
                    if i in ram:
                        ram.pop(i).until = end
                    if stored(i):
                        store[slot(i)] = None
                    coming.pop(i, None)
                    leaving.pop(i, None)
                ram.update(kept)
                for s in run.writes:
                    into_store(at, s.tensor)
                ran.add(step.op)
                continue
            i = step.tensor
            price = costs.tensors[i]
            if isinstance(step, PageOut):
                state_rule(budget.paging, at, "paging-forbidden", None, i)
                state_rule(i in ram, at, "not-in-ram", None, i)
                result.joules += price.out_joules
                if overlap:
                    t = max(clock, link_busy["out"], slot_busy.get(slot(i), 0.0))
                    if i in coming:
                        t = max(t, coming[i][1])
                    leaving[i] = slot_busy[slot(i)] = moved(t, price.out_seconds)
                    use_link("out", leaving[i])
                    makespan = max(makespan, leaving[i])
                elif serial:
                    makespan += price.out_seconds
                into_store(at, i)
            elif isinstance(step, PageIn):
                state_rule(budget.paging, at, "paging-forbidden", None, i)
                state_rule(stored(i), at, "not-stored", None, i)
                state_rule(i not in ram, at, "already-in-ram", None, i)
                result.joules += price.in_joules
                begin = here
                if overlap:
                    clock = when_there_is_room(at, clock, size[i])
                    begin = (clock, 3 * at)
                    t = max(clock, link_busy["in"], slot_busy.get(slot(i), 0.0))
                    coming[i] = (t, moved(t, price.in_seconds))
                    slot_busy[slot(i)] = coming[i][1]
                    use_link("in", coming[i][1])
                    makespan = max(makespan, coming[i][1])
                elif serial:
                    makespan += price.in_seconds
                ram[i] = hold(size[i], begin, at)
                check_ram_in_list(at, begin)
            else:
                assert isinstance(step, Free)
                state_rule(i in ram, at, "not-in-ram", None, i)
                state_rule(i not in budget.pinned, at, "pinned", None, i)
                gone = ram.pop(i)
                _, arrived = coming.pop(i, (0.0, 0.0))
                t = max(clock, arrived, leaving.pop(i, 0.0))
                gone.until = here
                if overlap and t > clock:
                    gone.until = (t, -1)
        tell()
        for k in range(len(graph.ops)):
            state_rule(k in ran, None, "never-run", k)
        for i in sorted(budget.end):
            have = [place for place, yes in (("ram", i in ram), ("store", stored(i))) if yes]
            need = budget.end[i]
            good = {"either": len(have) > 0, "both": len(have) == 2}.get(need, need in have)
            state_rule(good, None, "wrong-end", None, i)
    except Stop:
        pass

    for instant in sorted({h.since for h in result.held} | {START}):
        result.peak_bytes = max(result.peak_bytes, level(instant))
    result.seconds = makespan
    result.joules += costs.idle_watts * makespan
    deadline = budget.deadline_seconds
    if deadline is not None and makespan > deadline * (1 + 1e-9):
        found(None, "deadline")
    return result
