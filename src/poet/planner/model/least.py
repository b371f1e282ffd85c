"""Least prices: what a run, or a page, takes at least, however a schedule uses it."""

from poet.values.device import Costs, Run
from poet.values.schedule import Budget


class LeastPrices:
    """Joules, with the idle watts of the seconds that surely pass."""

    def __init__(self, costs: Costs, budget: Budget) -> None:
        self.costs, self.is_serial = costs, budget.transfers == "serial"
        self.usable: list[list[Run]] = [
            [run for run in runs.values() if budget.paging or not (run.reads or run.writes)]
            for runs in costs.ops
        ]
        """For each op the variants that may run at all."""

    def seconds(self, run: Run) -> float:
        moving = sum(stream.seconds for stream in (*run.reads, *run.writes))
        return run.seconds + (moving if self.is_serial else 0.0)

    def run(self, run: Run) -> float:
        return run.joules + run.stream_joules + self.costs.idle_watts * self.seconds(run)

    def page(self, joules: float, seconds: float) -> float:
        return joules + (self.costs.idle_watts * seconds if self.is_serial else 0.0)

    def page_in(self, i: int) -> float:
        price = self.costs.tensors[i]
        return self.page(price.in_joules, price.in_seconds)

    def page_out(self, i: int) -> float:
        price = self.costs.tensors[i]
        return self.page(price.out_joules, price.out_seconds)

    def of_op(self, v: int) -> float:
        """The cheapest run of an op."""
        return min(map(self.run, self.usable[v]))

    def every_op_once(self) -> float:
        return sum(map(self.of_op, range(len(self.usable))))
