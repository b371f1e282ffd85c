"""The referee: replays a plan instruction by instruction and says what it really does.

It trusts nobody and shares no code with what makes schedules. `_Replay` walks the schedule and
keeps the state: what is in RAM, what is in the store, what has run. A clock (`clocks`) turns
the same walk into time and RAM.

Rules of two kinds. A broken *state* rule (an input that is not there) ends the replay, since what
would follow has no meaning. A broken *limit* (RAM, store, deadline) is recorded and the replay goes
on, so that the true peak is known. The report names the first violation in the list's order. The
deadline is judged last.

Totals in the report cover the instructions that ran. Whoever wants to know more than totals listens
(`observer`): this is the one place that knows what an instruction does.
"""

from collections.abc import Iterable
from math import isclose
from pathlib import Path

import msgspec

from poet.errors import PoetError
from poet.referee.clocks import ListClock, TimelineClock
from poet.referee.observer import PLACES, Computed, Freed, Observer, Paged, Place, Places
from poet.referee.verdict import TOLERANCE, Report, Rule, Violation, mismatches
from poet.values.device import Run
from poet.values.files import read_json
from poet.values.plan import Plan
from poet.values.quantities import amount_text
from poet.values.schedule import Compute, Free, Instruction, PageIn, PageOut


def check(plan: Plan | str | Path, observer: Observer | None = None) -> Report:
    """Replay a plan, or a plan's file: is its schedule valid, what does it cost, are its claims
    true? An observer is told of each instruction as it happens.
    """
    plan = read_json(plan, Plan) if isinstance(plan, str | Path) else plan
    if not isinstance(plan, Plan):
        raise PoetError(f"a {type(plan).__name__} cannot be checked: give a plan, or its file")
    report = _Replay(plan, observer).report()
    return msgspec.structs.replace(report, mismatches=tuple(mismatches(plan, report)))


class _StateBroken(Exception):
    """Ends a replay; the violation is recorded already."""


class _Replay:
    """The state of the step, moved on by one instruction at a time."""

    def __init__(self, plan: Plan, observer: Observer | None) -> None:
        self.observer = observer
        self.plan, self.graph, self.costs, self.budget = plan, plan.graph, plan.costs, plan.budget
        self.nbytes = [tensor.nbytes for tensor in self.graph.tensors]
        # A tensor and the one it becomes share a slot of the store; one of them is there at a time,
        # or neither (None, after it was consumed). A slot once used stays used.
        self.slot = self.graph.slot
        self.in_ram = {i for i, place in self.budget.start.items() if place != "store"}
        self.pinned = frozenset(self.budget.pinned)
        self.slot_holds: dict[int, int | None] = {
            i: i for i, place in self.budget.start.items() if place != "ram"
        }
        self.store_bytes = sum(self.nbytes[i] for i in self.slot_holds)
        # Why a tensor that was in RAM no longer is: the instruction, and the op if it was consumed.
        self.gone: dict[int, tuple[int, int | None]] = {}
        self.has_run = [False] * len(self.graph.ops)
        self.last_draw = -1  # the last random op to have run first
        self.violation: Violation | None = None
        self.now: int | None = None  # the instruction being replayed
        self.compute_joules = self.transfer_joules = self.transfer_seconds = 0.0
        self.compute_seconds = 0.0
        self.recomputed = 0
        self.streamed: dict[int, list[int]] = {}
        self.moved = {PageIn: [0, 0], PageOut: [0, 0]}
        resident = sum(self.nbytes[i] for i in self.in_ram)
        self.clock: ListClock | TimelineClock
        if self.budget.transfers == "overlap":
            self.clock = TimelineClock(
                resident,
                self.budget.ram_bytes,
                self.costs.duplex,
                self.costs.compute_speed_in_overlap,
                self.costs.transfer_speed_in_overlap,
            )
        else:
            self.clock = ListClock(resident, transfers_count=self.budget.transfers == "serial")

    def report(self) -> Report:
        self.check_ram()
        self.check_store(None)
        if self.observer is not None:
            self.observer.on_start(self.places(self.budget.start))
        try:
            for at, instruction in enumerate(self.plan.schedule):
                self.now = at
                if isinstance(instruction, Compute):
                    self.compute(at, instruction)
                elif isinstance(instruction, PageOut):
                    self.page_out(at, instruction.tensor)
                elif isinstance(instruction, PageIn):
                    self.page_in(at, instruction.tensor)
                else:
                    self.free(at, instruction.tensor)
            self.now = None
            self.check_end()
        except _StateBroken:
            pass
        peak = self.clock.finish()
        self.now = None
        self.check_deadline()
        idle_joules = self.costs.idle_watts * self.clock.makespan
        return Report(
            violation=self.violation,
            joules=self.compute_joules + self.transfer_joules + idle_joules,
            seconds=self.clock.makespan,
            peak_bytes=peak.ram_bytes,
            peak_instruction=peak.instruction,
            compute_joules=self.compute_joules,
            transfer_joules=self.transfer_joules,
            idle_joules=idle_joules,
            compute_seconds=self.compute_seconds,
            transfer_seconds=self.transfer_seconds,
            store_peak_bytes=self.store_bytes,
            recomputed_ops=self.recomputed,
            page_ins=self.moved[PageIn][0],
            page_outs=self.moved[PageOut][0],
            page_in_bytes=self.moved[PageIn][1],
            page_out_bytes=self.moved[PageOut][1],
            streamed={i: (read, written) for i, (read, written) in self.streamed.items()},
            timeline=tuple(self.clock.moments),
        )

    def is_stored(self, i: int) -> bool:
        return self.slot_holds.get(self.slot[i]) == i

    def place(self, i: int) -> Place | None:
        return PLACES[i in self.in_ram, self.is_stored(i)]

    def places(self, ids: Iterable[int]) -> Places:
        return {i: self.place(i) for i in ids}

    def record(
        self, rule: Rule, message: str, op: int | None = None, tensor: int | None = None
    ) -> None:
        if self.violation is None:
            self.violation = Violation(
                instruction=self.now, rule=rule, op=op, tensor=tensor, message=message
            )

    def broken(
        self, rule: Rule, message: str, op: int | None = None, tensor: int | None = None
    ) -> _StateBroken:
        self.record(rule, message, op, tensor)
        return _StateBroken()

    def why_absent(self, i: int) -> str:
        name = self.graph.tensor_text(i)
        if i in self.gone:
            at, op = self.gone[i]
            how = "freed it" if op is None else f"consumed it ({self.graph.op_text(op)})"
            return f"{name} is not in RAM: instruction {at} {how}"
        if self.is_stored(i):
            return f"{name} is not in RAM, only in the store"
        return f"{name} is not in RAM: nothing has made it yet"

    def instruction_text(self) -> str:
        if self.now is None:
            return "the state at the start"
        instruction: Instruction = self.plan.schedule[self.now]
        if isinstance(instruction, Compute):
            return self.graph.op_text(instruction.op)
        verb = {PageOut: "page-out", PageIn: "page-in", Free: "free"}[type(instruction)]
        return f"{verb} of {self.graph.tensor_text(instruction.tensor)}"

    def check_ram(self) -> None:
        level, limit = self.clock.level, self.budget.ram_bytes
        if limit is not None and level > limit:
            op = tensor = None
            if self.now is not None:
                instruction = self.plan.schedule[self.now]
                op = instruction.op if isinstance(instruction, Compute) else None
                tensor = None if isinstance(instruction, Compute) else instruction.tensor
            text = f"{self.instruction_text()} brings RAM to {level:,} bytes"
            self.record("ram", f"{text}; the budget is {limit:,}", op, tensor)

    def check_store(self, tensor: int | None) -> None:
        limit = self.budget.store_bytes
        if limit is not None and self.store_bytes > limit:
            self.record(
                "store",
                f"{self.instruction_text()} brings the store to {self.store_bytes:,} bytes; "
                f"it has {limit:,}",
                tensor=tensor,
            )

    def check_deadline(self) -> None:
        limit, took = self.budget.deadline_seconds, self.clock.makespan
        if limit is not None and took > limit and not isclose(took, limit, rel_tol=TOLERANCE):
            self.record(
                "deadline",
                f"the step takes {took:.9g} s ({amount_text(took, 's')}); "
                f"the deadline is {limit:.9g} s",
            )

    def check_end(self) -> None:
        for k, ran in enumerate(self.has_run):
            if not ran:
                raise self.broken("never-run", f"{self.graph.op_text(k)} never runs", op=k)
        for i, wanted in sorted(self.budget.end.items()):
            place = self.place(i)
            good = place is not None if wanted == "either" else place in (wanted, "both")
            if not good:
                where = {
                    "both": "in both",
                    "ram": "only in RAM",
                    "store": "only in the store",
                    None: "in neither",
                }[place]
                raise self.broken(
                    "wrong-end",
                    f"{self.graph.tensor_text(i)} must end in {wanted}; it is {where}",
                    tensor=i,
                )

    def compute(self, at: int, instruction: Compute) -> None:
        k = instruction.op
        op, run = self.graph.ops[k], self.costs.ops[k][instruction.variant]
        streamed_in = {stream.tensor for stream in run.reads}
        streamed_out = {stream.tensor for stream in run.writes}
        self.check_may_run(k, run)
        # Each output is wanted in one place; it is missing if it is not there yet.
        missing = [
            i
            for i in op.outputs
            if not (self.is_stored(i) if i in streamed_out else i in self.in_ram)
        ]
        if not missing:
            text = f"{self.graph.op_text(k)} runs, but no output is missing"
            raise self.broken("nothing-missing", text, op=k)
        for i in op.inputs:
            if i in streamed_in:
                if not self.is_stored(i):
                    what = f"{self.graph.op_text(k)} streams {self.graph.tensor_text(i)}"
                    text = f"{what}, which is not in the store"
                    raise self.broken("not-stored", text, op=k, tensor=i)
            elif i not in self.in_ram:
                text = f"{self.graph.op_text(k)}: its input {self.why_absent(i)}"
                raise self.broken("input-missing", text, op=k, tensor=i)

        # An output in place of an input that was read from RAM sits in that input's bytes.
        consumed = op.consumed
        seats = [p for p in op.in_place if p.input not in streamed_in]
        seated = {p.output for p in seats}
        arrivals = [i for i in missing if i not in streamed_out]
        brought = [i for i in arrivals if i not in seated]
        second_copies = [
            i for i in op.outputs if i not in missing and i not in seated and i not in streamed_out
        ]
        taken_over = [p for p in seats if p.output in arrivals]
        kept = {p.input for p in taken_over}
        leaving = [i for i in consumed if i in self.in_ram and i not in kept]
        begin, end = self.clock.compute(
            at,
            run,
            inputs=[i for i in op.inputs if i not in streamed_in],
            consumed=consumed,
            slots=[self.slot[s.tensor] for s in (*run.reads, *run.writes)],
            brings=sum(self.nbytes[i] for i in brought),
            transient=run.workspace_bytes + sum(self.nbytes[i] for i in second_copies),
            leaves=sum(self.nbytes[i] for i in leaving),
        )
        self.check_ram()
        for i in consumed:
            self.in_ram.discard(i)
            if self.is_stored(i):
                self.slot_holds[self.slot[i]] = None
            self.gone[i] = (at, k)
        self.in_ram.update(arrivals)
        overwritten: set[int] = set()
        for stream in run.writes:
            overwritten |= self.put_in_store(stream.tensor)
        if self.observer is not None:
            told = Computed(
                op=k,
                recomputed=self.has_run[k],
                made=tuple(missing),
                brought=tuple(brought),
                second_copies=tuple(second_copies),
                taken_over=tuple(taken_over),
                leaving=tuple(leaving),
                streamed_in=tuple(streamed_in),
                workspace_bytes=run.workspace_bytes,
                begin=begin,
                end=end,
                places=self.places({*missing, *consumed, *streamed_in, *overwritten}),
            )
            self.observer.on_compute(at, told)
        self.account(k, run)

    def check_may_run(self, k: int, run: Run) -> None:
        if self.has_run[k]:
            if not self.graph.ops[k].recomputable:
                text = f"{self.graph.op_text(k)} must not run twice"
                raise self.broken("not-recomputable", text, op=k)
            if not self.budget.recompute:
                text = f"{self.graph.op_text(k)} runs again; the budget forbids it"
                raise self.broken("recompute-forbidden", text, op=k)
        elif self.graph.ops[k].random_state_bytes:
            if k < self.last_draw:
                text = f"{self.graph.op_text(k)} must draw random numbers before"
                text = f"{text} {self.graph.op_text(self.last_draw)}, as in the graph"
                raise self.broken("random-order", text, op=k)
            self.last_draw = k
        if not self.budget.paging and (run.reads or run.writes):
            text = f"{self.graph.op_text(k)} streams; the budget forbids paging"
            raise self.broken("paging-forbidden", text, op=k)

    def account(self, k: int, run: Run) -> None:
        self.recomputed += self.has_run[k]
        self.has_run[k] = True
        self.compute_joules += run.joules
        self.compute_seconds += run.seconds
        for way, streams in enumerate((run.reads, run.writes)):
            for stream in streams:
                self.transfer_joules += stream.joules
                self.transfer_seconds += stream.seconds
                self.streamed.setdefault(stream.tensor, [0, 0])[way] += stream.nbytes

    def put_in_store(self, i: int) -> set[int]:
        """Returns the tensors whose place this may change: what was in the slot is overwritten."""
        slot = self.slot[i]
        old = self.slot_holds.get(slot)
        if slot not in self.slot_holds:
            self.store_bytes += self.nbytes[i]
        self.slot_holds[slot] = i
        self.check_store(i)
        return {i} if old is None else {i, old}

    def page_out(self, at: int, i: int) -> None:
        self.check_paging(i)
        if i not in self.in_ram:
            raise self.broken("not-in-ram", f"cannot page out: {self.why_absent(i)}", tensor=i)
        price = self.costs.tensors[i]
        begin, end = self.clock.page_out(at, i, self.slot[i], price.out_seconds)
        self.move(PageOut, i, price.out_seconds, price.out_joules)
        moved = self.put_in_store(i)
        if self.observer is not None:
            told = Paged(tensor=i, issued=begin, begin=begin, end=end, places=self.places(moved))
            self.observer.on_page_out(at, told)

    def page_in(self, at: int, i: int) -> None:
        self.check_paging(i)
        if not self.is_stored(i):
            text = f"cannot page in {self.graph.tensor_text(i)}: it is not stored"
            raise self.broken("not-stored", text, tensor=i)
        if i in self.in_ram:
            text = f"cannot page in {self.graph.tensor_text(i)}: it is in RAM"
            raise self.broken("already-in-ram", text, tensor=i)
        price = self.costs.tensors[i]
        issued, begin, end = self.clock.page_in(
            at, i, self.slot[i], price.in_seconds, self.nbytes[i]
        )
        self.move(PageIn, i, price.in_seconds, price.in_joules)
        self.in_ram.add(i)
        self.check_ram()
        if self.observer is not None:
            told = Paged(tensor=i, issued=issued, begin=begin, end=end, places=self.places([i]))
            self.observer.on_page_in(at, told)

    def move(
        self, kind: type[PageIn] | type[PageOut], i: int, seconds: float, joules: float
    ) -> None:
        self.transfer_seconds += seconds
        self.transfer_joules += joules
        self.moved[kind][0] += 1
        self.moved[kind][1] += self.nbytes[i]

    def check_paging(self, i: int) -> None:
        if not self.budget.paging:
            text = f"{self.instruction_text()}; the budget forbids paging"
            raise self.broken("paging-forbidden", text, tensor=i)

    def free(self, at: int, i: int) -> None:
        if i not in self.in_ram:
            raise self.broken("not-in-ram", f"cannot free: {self.why_absent(i)}", tensor=i)
        if i in self.pinned:
            raise self.broken(
                "pinned",
                f"cannot free: {self.graph.tensor_text(i)} is pinned: somebody else holds it, and "
                "to free it gives nothing back",
                tensor=i,
            )
        end = self.clock.free(at, i, self.nbytes[i])
        self.in_ram.remove(i)
        self.gone[i] = (at, None)
        if self.observer is not None:
            self.observer.on_free(at, Freed(tensor=i, end=end, place=self.place(i)))
