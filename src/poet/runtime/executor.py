"""Executor: a plan on a program, step after step.

It compiles the plan's schedule once (`tape`), reserves the pages it needs, and runs steps on a
`Machine`. Parameters, buffers and optimizer state are the model's own storages: where the plan
frees one, its storage is emptied and filled again by a page-in, so that no other copy exists.
"""

from typing import Any

import torch

from poet.costs.workspace import workspace_bytes
from poet.device import PLAIN
from poet.errors import PoetError
from poet.runtime.machine import Machine
from poet.runtime.stores import Store
from poet.runtime.tape import tape_of
from poet.schedule import Free, PageIn, PageOut, Plan
from poet.tracer.program import Program, Result


class Executor:
    """Runs one plan of one program."""

    def __init__(self, program: Program, plan: Plan, store: Store | None = None) -> None:
        program.check_plan(plan)
        if not plan.schedule:
            raise PoetError(f"the plan has no schedule: it is {plan.status}. {plan.reason}")
        self.program, self.plan, self.store = program, plan, store
        graph = plan.graph
        self.slots = {i: i if t.becomes is None else t.becomes for i, t in enumerate(graph.tensors)}
        if self.pages and store is None:
            raise PoetError(
                f"the plan pages {len(self.pages)} tensors and needs a store: give a folder"
            )
        layout = program.layout
        heirs = tuple(i for i, tensor in enumerate(graph.tensors) if tensor.becomes is not None)
        workspace = {
            k: max(variants[PLAIN].workspace_bytes, workspace_bytes(graph.ops[k], graph))
            for k, variants in enumerate(plan.costs.ops)
        }
        wanted = (layout.loss, *layout.gradients.values(), *heirs)
        self.tape = tape_of(graph, plan.schedule, plan.budget, workspace, wanted)
        self._frees_inputs = any(
            isinstance(step, Free) and graph.tensors[step.tensor].role == "input"
            for step in plan.schedule
        )

    @property
    def pages(self) -> dict[int, int]:
        """The pages that the plan needs in the store, with their bytes."""
        stored = {i for i, place in self.plan.budget.start.items() if place != "ram"}
        stored |= {s.tensor for s in self.plan.schedule if isinstance(s, PageOut | PageIn)}
        return {self.slots[i]: self.plan.graph.tensors[i].nbytes for i in sorted(stored)}

    def run(self, batch: Any) -> tuple[Result, Machine]:
        """One step. The machine tells what it took."""
        program, graph, budget = self.program, self.plan.graph, self.plan.budget
        homes = program.homes()
        place = {**homes, **{i: homes[t.becomes] for i, t in enumerate(graph.tensors)
                             if t.becomes in homes and self._in_place(i)}}  # fmt: skip
        machine = Machine(
            graph,
            self.store,
            budget.ram_bytes,
            {i: tensor.untyped_storage() for i, tensor in place.items()},
            self.slots,
            wait=budget.transfers != "overlap",
            device=program.model_device,
        )
        given = {
            i: tensor for i, tensor in program.given(batch).items() if budget.start[i] != "store"
        }
        if self._frees_inputs:  # the batch is the caller's: what the step frees must be its own
            for i in program.layout.inputs.values():
                given[i] = given[i].clone()
        machine.start(given)
        before = torch.is_grad_enabled()
        try:
            with torch.autocast(program.model_device.type, enabled=False):
                made = self.tape.run(machine, given)
        finally:
            torch._C._set_grad_enabled(before)
        machine.finish()
        return program.finish(made.get), machine

    def _in_place(self, i: int) -> bool:
        maker = self.plan.graph.producer[i]
        assert maker is not None
        return any(pair.output == i for pair in self.plan.graph.ops[maker].in_place)
