"""Steering: costs in which time has its price, for searches that know no clock.

Where transfers run beside compute, the makespan is that of a timeline, which neither the annealer
nor the model of stages knows. They are given prices instead: so many joules for each second of
compute, and of transfers each way. The dual values of the relaxation say what seconds are worth
(proof/bounds.py): where the link is the narrow place, transfers, and compute where it is not.
"""

import msgspec

from poet.planner.incumbent import TimePrices
from poet.values.device import Costs, Run, Stream
from poet.values.schedule import Budget

SOME = 0.02
"""Of what transfers are worth, a second of compute is at least. By hand."""


def steered(costs: Costs, budget: Budget, prices: TimePrices) -> tuple[Costs, Budget]:
    """Costs whose joules have the price of their seconds in them, and a budget without a clock.

    Compute is never quite free: between schedules that wait for the link alike, less of it is
    better.
    """
    least = SOME * (prices.page_in + prices.page_out)
    prices = prices._replace(compute=max(prices.compute, least))

    def moved(stream: Stream, watts: float) -> Stream:
        return msgspec.structs.replace(stream, joules=stream.joules + watts * stream.seconds)

    def timed(run: Run) -> Run:
        return msgspec.structs.replace(
            run,
            joules=run.joules + prices.compute * run.seconds,
            reads=tuple(moved(stream, prices.page_in) for stream in run.reads),
            writes=tuple(moved(stream, prices.page_out) for stream in run.writes),
        )

    ops = tuple({name: timed(run) for name, run in runs.items()} for runs in costs.ops)
    tensors = tuple(
        msgspec.structs.replace(
            price,
            in_joules=price.in_joules + prices.page_in * price.in_seconds,
            out_joules=price.out_joules + prices.page_out * price.out_seconds,
        )
        for price in costs.tensors
    )
    plain = msgspec.structs.replace(costs, ops=ops, tensors=tensors, idle_watts=0.0)
    free = msgspec.structs.replace(budget, transfers="free", deadline_seconds=None)
    return plain, free
