"""Reruns: until when ops may run again in the local search, and until when tensors are of use.

Stage n, after the last op, is the step's end. What an op consumed in place may be made again by who
made it, in any later stage in which that op's own inputs can be had; and an op in place may itself
run again, with its input made again.
"""

from poet.values.graph import Graph
from poet.values.schedule import Budget


class Reruns:
    """`to[v]`: the last stage in which op v may run again, whatever is in RAM when it begins, if
    what was not consumed is kept; -1 if never. `if_kept[v]`: the same where things that were made
    again after they were consumed have been kept. `last_keep[i]`: the last stage into which tensor
    i can usefully be kept. `of_consumed`: whether anything can be made again after it was consumed.
    """

    def __init__(self, graph: Graph, budget: Budget) -> None:
        self.graph, self.budget, end = graph, budget, len(graph.ops)
        self.consumed_by = [end if k is None else k for k in graph.consumer]
        self.to, self.if_kept = [-1] * end, [-1] * end
        for k, op in enumerate(graph.ops):
            if budget.recompute and op.recomputable:
                self.to[k] = min([end, *map(self.made_until, op.inputs)])
                self.if_kept[k] = min([end, *map(self.there_until, op.inputs)])
        self.last_keep = self._last_keep()
        self.of_consumed = any(
            maker is not None and consumed < self.if_kept[maker]
            for maker, consumed in zip(graph.producer, self.consumed_by, strict=True)
        )

    def made_until(self, i: int) -> int:
        """The last stage in which tensor i can be had by keeping it or by running its maker."""
        maker, consumed = self.graph.producer[i], self.consumed_by[i]
        return consumed if maker is None else max(consumed, self.to[maker])

    def there_until(self, i: int) -> int:
        """The last stage in which tensor i can be in RAM."""
        maker, consumed = self.graph.producer[i], self.consumed_by[i]
        made_again = maker is not None and self.if_kept[maker] > consumed
        return len(self.graph.ops) if made_again else consumed

    def _last_keep(self) -> list[int]:
        """That of a reader, or the last in which a reader may run again for something useful."""
        graph, end = self.graph, len(self.graph.ops)
        last_run = list(range(end))
        last = [-1] * len(graph.tensors)
        pinned = frozenset(self.budget.pinned)

        def settle(i: int) -> None:
            last[i] = max((last_run[k] for k in graph.readers[i]), default=-1)
            place = self.budget.end.get(i)
            written_last = place is not None and self.consumed_by[i] < end
            if i in pinned or written_last or place not in (None, "store"):
                last[i] = end
            last[i] = min(last[i], self.there_until(i))

        for k in reversed(range(end)):
            for i in graph.ops[k].outputs:
                settle(i)
            wanted = max(last[i] for i in graph.ops[k].outputs)
            last_run[k] = max(k, min(self.if_kept[k], wanted))
        for i in graph.given:
            settle(i)
        return last
