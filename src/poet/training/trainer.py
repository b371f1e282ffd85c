"""Training: `poet.Trainer` and `poet.wrap`, the runtime joined to capture and planner."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from poet.costs.analytic import analytic
from poet.costs.streams import with_streams
from poet.devices import find_device
from poet.errors import PoetError
from poet.planning.plan import plan as make_plan
from poet.planning.problems import read_costs
from poet.runtime.session import Params
from poet.runtime.session import Trainer as _Trainer
from poet.runtime.step.streams import with_extra
from poet.runtime.stores.base import Store
from poet.tracer.capture import Granularity, capture, capture_outputs
from poet.tracer.program import Program
from poet.training.wrapped import Wrapped
from poet.values.device import Costs, Device, Transfer
from poet.values.optimizers import Optimizer
from poet.values.plan import Plan
from poet.values.profile import Profile
from poet.values.schedule import Goal, PageOut, Transfers
from poet.values.schedule import Params as Kind


class Trainer(_Trainer):
    """Training steps of a model that never take more RAM than they were given.

    `step(*inputs, target)` (or keyword arguments, for a dict example) captures and plans each batch
    shape when it comes first, runs it by the plan, and gives the loss. `ram` is bytes or a size
    such as `"2 GiB"`, by default without limit; `store` is a folder for pages. Plans follow the
    rates of the board `device`, by default a laptop's, or better measured `costs` (a profile, or
    its file); batches of other shapes than the profile's follow its machine's rates. `params` says
    where parameters and optimizer state live between steps: `resident` in RAM, `paged` in the
    store, `streamed` there too, where ops may read large ones in tiles. `auto` is the first of
    these that fits. With tiles, sums are rounded differently than in eager PyTorch.
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
        device: str | Device | None = None,
        costs: Costs | Profile | str | Path | None = None,
        deadline: str | float | None = None,
        minimize: Goal = "joules",
        transfers: Transfers | None = None,
        plan: Plan | None = None,
        params: Params = "auto",
        time_limit: float = 20.0,
        granularity: Granularity = "planning",
        autocast: torch.dtype | str | None = None,
        cache: bool = True,
        quiet: bool = False,
    ) -> None:
        def captured(batch: Any, fuse_updates: bool) -> Program:
            return capture(
                model,
                batch,
                loss_fn,
                optimizer,
                granularity=granularity,
                fuse_updates=fuse_updates,
                autocast=autocast,
                cache=cache,
            )

        def planned(program: Program, ram_bytes: int | None, kind: Kind) -> Plan:
            measured = given if given is not None and _is_of(given, program) else None
            fallback = kind == "streamed" and params == "auto"
            if given is not None and measured is None and not (hasattr(self, "plan") or fallback):
                fuse = " --fuse-updates" if kind == "streamed" else ""
                raise PoetError(
                    f"the costs are of another graph than {program.graph.name}'s: of another "
                    "model, batch shape, optimizer or granularity. Profile this one "
                    f"(poet profile MODEL --optimizer …{fuse})"
                )
            prices = _staying(program, board, measured, program.layout.inputs.values())
            if kind == "streamed":
                prices = _streaming(program, board, prices)
            return make_plan(
                program,
                board,
                ram_bytes if ram_bytes is not None else _ENDLESS,
                deadline,
                costs=prices,
                transfers=transfers,
                # The costs have the streams already, as large as they are in PyTorch.
                params="resident" if kind == "resident" else "paged",
                keep_inputs=True,
                paging=store is not None,
                minimize=minimize,
                time_limit=time_limit,
            )

        given = read_costs(costs) if isinstance(costs, str | Path) else costs
        board = device or (given.device if isinstance(given, Profile) else "laptop")
        board = find_device(board) if isinstance(board, str) else board
        self.board = board
        self.costs_text = (
            f"the rates of {board.title}" if given is None else f"costs measured on {board.title}"
        )
        super().__init__(
            captured, planned, example, ram=ram, store=store, plan=plan, params=params, quiet=quiet
        )

    @property
    def mean_watts(self) -> float:
        """What the plan takes on the average: where nothing counts, the best there is to know."""
        return (self.plan.joules or 0.0) / self.plan.seconds if self.plan.seconds else 0.0


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

    def captured(batch: Any, fuse_updates: bool) -> Program:
        return capture_outputs(model, batch, granularity=granularity, autocast=autocast)

    def planned(program: Program, ram_bytes: int | None, kind: Kind) -> Plan:
        staying = (*program.homes(), *program.layout.inputs.values())
        plan = make_plan(
            program,
            device,
            ram_bytes if ram_bytes is not None else _ENDLESS,
            deadline,
            costs=_staying(program, device, None, staying),
            params="resident",
            keep_inputs=True,
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


def _staying(
    program: Program,
    device: str | Device,
    measured: Costs | Profile | None,
    tensors: Iterable[int],
) -> Costs | Profile:
    """The costs of a program, with a price on moving these tensors that nobody pays.

    Somebody else holds them in RAM during the step: the batch is the caller's, and in a loop of the
    user's own the parameters are, too. To page them would free nothing.
    """
    board = find_device(device) if isinstance(device, str) else device
    costs = measured.costs if isinstance(measured, Profile) else measured
    costs = costs or analytic(program.graph, board)
    seconds, joules = _DEAR * costs.keep_all_seconds, _DEAR * costs.keep_all_joules
    dear = Transfer(in_seconds=seconds, in_joules=joules, out_seconds=seconds, out_joules=joules)
    held = frozenset(tensors)
    prices = tuple(dear if i in held else price for i, price in enumerate(costs.tensors))
    costs = msgspec.structs.replace(costs, tensors=prices)
    if isinstance(measured, Profile):
        return msgspec.structs.replace(measured, costs=costs)
    return costs


def _streaming(program: Program, device: str | Device, prices: Costs | Profile) -> Costs | Profile:
    """The costs with streamed variants, and what they take in PyTorch."""
    board = find_device(device) if isinstance(device, str) else device
    costs = prices.costs if isinstance(prices, Profile) else prices
    costs = with_extra(with_streams(costs, program.graph, board), program.graph)
    if isinstance(prices, Profile):
        return msgspec.structs.replace(prices, costs=costs)
    return costs


def _is_of(costs: Costs | Profile, program: Program) -> bool:
    return (costs.costs if isinstance(costs, Profile) else costs).graph == program.fingerprint


_DEAR = 100.0
_ENDLESS = 2**50
"""More RAM than anybody has: a plan without limit."""
