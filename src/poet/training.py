"""Training: `poet.Trainer` and `poet.wrap`, the runtime joined to capture and planner."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import nn

from poet.capturing import Granularity, capture, capture_outputs
from poet.costs.analytic import analytic
from poet.device import Costs, Device, Transfer
from poet.devices import find_device
from poet.errors import PoetError
from poet.optimizers import Optimizer
from poet.planning import plan as make_plan
from poet.runtime.stores import Store
from poet.runtime.trainer import Params
from poet.runtime.trainer import Trainer as _Trainer
from poet.runtime.wrapped import Wrapped
from poet.schedule import PageOut, Plan
from poet.tracer.program import Program


class Trainer(_Trainer):
    """Training steps of a model that never take more RAM than they were given.

    `step(*inputs, target)` (or keyword arguments, for a dict example) captures and plans each batch
    shape when it comes first, runs it by the plan, and gives the loss. `ram` is bytes or a size
    such as `"2 GiB"`, by default without limit; `store` is a folder for pages; `device` names the
    board whose rates the plan's costs follow. `params` says where parameters and optimizer state
    live between steps: `resident` in RAM, `paged` in the store, `auto` in RAM if that fits.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        optimizer: Optimizer | torch.optim.Optimizer | None = None,
        example: Any = None,
        *,
        ram: str | int | None = None,
        store: str | Path | Store | None = None,
        device: str | Device = "laptop",
        deadline: str | float | None = None,
        plan: Plan | None = None,
        params: Params = "auto",
        time_limit: float = 20.0,
        granularity: Granularity = "planning",
        autocast: torch.dtype | str | None = None,
        cache: bool = True,
        quiet: bool = False,
    ) -> None:
        def captured(batch: Any) -> Program:
            return capture(
                model,
                batch,
                loss_fn,
                optimizer,
                granularity=granularity,
                autocast=autocast,
                cache=cache,
            )

        def planned(
            program: Program, ram_bytes: int | None, params: Literal["resident", "paged"]
        ) -> Plan:
            return make_plan(
                program,
                device,
                ram_bytes if ram_bytes is not None else _ENDLESS,
                deadline,
                params=params,
                paging=store is not None,
                time_limit=time_limit,
            )

        super().__init__(
            captured, planned, example, ram=ram, store=store, plan=plan, params=params, quiet=quiet
        )


def wrap(
    model: nn.Module,
    example: Any,
    *,
    ram: str | int | None = None,
    store: str | Path | Store | None = None,
    device: str | Device = "laptop",
    deadline: str | float | None = None,
    time_limit: float = 20.0,
    granularity: Granularity = "planning",
    autocast: torch.dtype | str | None = None,
    quiet: bool = False,
) -> Wrapped:
    """The model as a module whose forward and backward passes follow a plan.

    Loop, loss, `loss.backward()`, optimizer and clipping stay the user's own; `example` is what the
    model is called with. Parameters and their gradients stay in RAM, and count.
    """

    def captured(batch: Any) -> Program:
        return capture_outputs(model, batch, granularity=granularity, autocast=autocast)

    def planned(
        program: Program, ram_bytes: int | None, params: Literal["resident", "paged"]
    ) -> Plan:
        plan = make_plan(
            program,
            device,
            ram_bytes if ram_bytes is not None else _ENDLESS,
            deadline,
            costs=_staying(program, device),
            paging=store is not None,
            time_limit=time_limit,
        )
        moved = {s.tensor for s in plan.schedule if isinstance(s, PageOut)} & {*program.homes()}
        if moved:
            raise PoetError(
                f"within {ram_bytes:,} bytes no plan was found that leaves the parameters in RAM, "
                "where the user's loop may look at them. Try more RAM, or poet.Trainer"
            )
        return plan

    trainer = _Trainer(
        captured, planned, example, ram=ram, store=store, params="resident", quiet=quiet
    )
    return Wrapped(model, trainer)


def _staying(program: Program, device: str | Device) -> Costs:
    """The costs of a program, with a price on moving parameters and buffers that nobody pays."""
    board = find_device(device) if isinstance(device, str) else device
    costs = analytic(program.graph, board)
    dear = Transfer(in_seconds=_DEAR, in_joules=_DEAR, out_seconds=_DEAR, out_joules=_DEAR)
    homes = program.homes()
    tensors = tuple(dear if i in homes else cost for i, cost in enumerate(costs.tensors))
    return msgspec.structs.replace(costs, tensors=tensors)


_DEAR = 1e6
_ENDLESS = 2**50
"""More RAM than anybody has: a plan without limit."""
