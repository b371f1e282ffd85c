"""Executor: a plan on a program, step after step.

It compiles the plan's schedule once (`tape`) and runs steps on a `Machine`. Parameters, buffers and
optimizer state are the model's own storages: where the plan frees one, its storage is emptied and
filled again by a page-in, so that no other copy exists.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

import torch

from poet.errors import PoetError
from poet.referee.refusing import refuse_if_wrong
from poet.runtime.step.machine import Machine
from poet.runtime.step.passes import Foreknown, Pass, foreknown
from poet.runtime.step.streams import way_of
from poet.runtime.step.tape import tape_of
from poet.runtime.stores.base import Store
from poet.tracer.program import Lasting, Program, Result
from poet.values.graph import Graph
from poet.values.plan import Plan
from poet.values.schedule import PERSISTENT, Compute, Free, PageIn, PageOut


class Executor:
    """Runs one plan of one program.

    Its pages are numbered from `first_page`, but for those of parameters, buffers and state, which
    have the numbers in `pages_of`: plans of one model for several batch shapes share them. `lap` is
    told when an instruction has ended, with the frees that follow it, by its place in the schedule.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        store: Store | None = None,
        first_page: int = 0,
        pages_of: Mapping[Lasting, int] = {},
        lap: Callable[[int], None] | None = None,
    ) -> None:
        program = program.for_plan(plan)
        if not plan.schedule:
            raise PoetError(f"the plan has no schedule: it is {plan.status}. {plan.reason}")
        _check_runs(plan)
        self.program, self.plan, self.store = program, plan, store
        graph, layout = plan.graph, program.layout
        lasting = {i: pages_of[what] for what, i in program.lasting.items() if what in pages_of}
        self.slots = {i: lasting.get(slot, first_page + slot) for i, slot in enumerate(graph.slot)}
        variants = {(s.op, s.variant) for s in plan.schedule if isinstance(s, Compute)}
        ways = {(k, name): way_of(graph, k, name, plan.costs.ops[k][name]) for k, name in variants}
        self._streamed = frozenset(i for way in ways.values() for i in (*way.reads, *way.writes))
        if self.pages and store is None:
            raise PoetError(
                f"the plan pages {len(self.pages)} tensors and needs a store: give a folder"
            )
        heirs = graph.heir.values()
        gradients = (piece.tensor for piece in layout.input_gradients.values())
        told = (i for i in (layout.norm, layout.skip) if i is not None)
        wanted = (*layout.outputs, *layout.gradients.values(), *gradients, *told, *heirs)
        handed_out = (*layout.outputs, *graph.heir, *heirs) if layout.tangents else ()
        self._write = partial(
            tape_of, graph, plan.schedule, plan.budget, ways, tuple(dict.fromkeys(wanted)),
            tuple(dict.fromkeys(handed_out)), laps=lap is not None,
        )  # fmt: skip
        self.tape = self._write()
        self._lap = lap
        self._may_stop_counting = not self.pages and lap is None
        self._lasting_home = _homes_of(graph, program.lasting.values())
        emptied = (s.tensor for s in plan.schedule if isinstance(s, Free | PageIn))
        self._emptied = [i for i in dict.fromkeys(emptied) if i in self._lasting_home]
        self._changed = [i for i in program.lasting.values() if graph.consumer[i] is not None]
        self._in_store = [i for i, place in plan.budget.start.items() if place == "store"]
        self._frees_inputs = any(
            isinstance(step, Free) and graph.tensors[step.tensor].role == "input"
            for step in plan.schedule
        )

    @cached_property
    def _foreknown(self) -> Foreknown:
        return foreknown(self.plan)

    @cached_property
    def pages(self) -> dict[int, int]:
        """The pages that the plan needs in the store, with their bytes."""
        stored = {i for i, place in self.plan.budget.start.items() if place != "ram"}
        stored |= {s.tensor for s in self.plan.schedule if isinstance(s, PageOut | PageIn)}
        stored |= self._streamed
        return {self.slots[i]: self.plan.graph.tensors[i].nbytes for i in sorted(stored)}

    @property
    def in_parts(self) -> frozenset[int]:
        """Those pages that move in parts, because an op streams them."""
        return frozenset(self.slots[i] for i in self._streamed)

    def store_constants(self) -> None:
        """Write the pages of constants that the plan finds in the store: no step changes them."""
        for i, tensor in self.program.constants().items():
            if self.plan.budget.start[i] != "ram":
                assert self.store is not None
                self.store.write(self.slots[i], tensor.untyped_storage(), now=True).wait()

    def run(self, batch: Any) -> tuple[Result, Machine]:
        """One step. The machine tells what it took."""
        machine, given = self.prepared(batch)
        return self.follow(machine, given), machine

    def follow(self, machine: Machine, given: dict[int, torch.Tensor]) -> Result:
        """The step that was prepared."""
        before = torch.is_grad_enabled()
        try:
            with torch.autocast(self.program.model_device.type, enabled=False):
                made = self.tape.run(machine, given)
        finally:
            torch._C._set_grad_enabled(before)
        machine.finish()
        self._learn(machine)
        return self.program.finish(made.get)

    def _learn(self, machine: Machine) -> None:
        """A whole step has run. Where its bytes were as planned, no other step needs to count."""
        if self._may_stop_counting and machine.is_as_planned:
            self.tape, self._may_stop_counting = self._write(counts=False), False

    def begin(self, batch: Any, beside_bytes: int = 0) -> Pass:
        """The forward pass of a step that waits for gradients of its outputs.

        `beside_bytes` of the budget are taken by somebody else.
        """
        machine, given = self.prepared(batch, beside_bytes)
        return Pass(
            self.program, self._foreknown, machine, self.tape, given, beside_bytes, self._learn
        )

    def prepared(
        self, batch: Any, beside_bytes: int = 0
    ) -> tuple[Machine, dict[int, torch.Tensor]]:
        """A step about to begin. A batch that does not fit is refused, and nothing has happened."""
        program, graph, budget = self.program, self.plan.graph, self.plan.budget
        homes = program.homes()
        given = program.given(batch, homes)
        self._check_apart(given)
        machine = Machine(
            graph,
            self.store,
            budget.ram_bytes,
            {i: homes[self._lasting_home[i]].untyped_storage() for i in self._emptied},
            self.slots,
            wait=budget.transfers != "overlap",
            device=program.model_device,
        )
        if self._lap is not None:
            machine.lap = self._lap
        for i in self._in_store:
            del given[i]
        if self._frees_inputs:  # the batch is the caller's: what the step frees must be its own
            for i in program.layout.inputs.values():
                given[i] = given[i].clone()
        machine.start(given, beside_bytes)
        return machine, given

    def _check_apart(self, given: dict[int, torch.Tensor]) -> None:
        """Refuse a batch in the memory of parameters that the step changes while it reads it."""
        if not self._changed:
            return
        inputs = self.program.layout.inputs.values()
        theirs = {given[i].untyped_storage().data_ptr() for i in inputs} - {0}
        for i in self._changed:
            if given[i].untyped_storage().data_ptr() in theirs:
                name = self.plan.graph.tensor_text(i)
                raise PoetError(
                    f"the batch shares memory with {name}, which the step changes while it still "
                    "reads the batch. Give a copy: x.clone()"
                )


def _homes_of(graph: Graph, lasting: Iterable[int]) -> dict[int, int]:
    """For each tensor that sits where one lives that lasts from step to step, that one."""
    homes = {i: i for i in lasting}
    for op in graph.ops:
        homes |= {p.output: homes[p.input] for p in op.in_place if p.input in homes}
    return homes


def _check_runs(plan: Plan) -> None:
    """Refuse a plan that nobody may train by, or that this runtime cannot."""
    refuse_if_wrong(plan)
    lasting = {i for i in plan.graph.given if plan.graph.tensors[i].role in PERSISTENT}
    if len({plan.budget.start[i] for i in lasting}) > 1:
        raise PoetError(
            "the plan starts with some parameters, buffers or state in RAM and others in the "
            "store; a trainer keeps them in one place. Plan again"
        )
