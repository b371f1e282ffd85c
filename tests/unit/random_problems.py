"""Random graphs, costs, budgets and schedules that use everything the values allow."""

from random import Random

from msgspec.structs import replace

from poet import (
    Budget,
    Compute,
    Costs,
    Free,
    Graph,
    InPlace,
    Op,
    PageIn,
    PageOut,
    Run,
    Schedule,
    Stream,
    Tensor,
    Transfer,
)
from poet.values.schedule import Instruction, Start

SIZES = (0, 1, 7, 64, 100, 256, 1000)


def random_graph(rng: Random, ops: int, in_place_share: float = 0.2) -> Graph:
    """Skip connections, several outputs, in-place ops, parameters updated in place at the end."""
    tensors: list[Tensor] = []
    made: list[Op] = []
    consumed: set[int] = set()

    def tensor(role: str, nbytes: int | None = None, becomes: int | None = None) -> int:
        size = rng.choice(SIZES) if nbytes is None else nbytes
        name = f"{role}{len(tensors)}"
        tensors.append(Tensor(name=name, nbytes=size, role=role, becomes=becomes))  # type: ignore[arg-type]
        return len(tensors) - 1

    parameters = [tensor("parameter") for _ in range(rng.randint(0, 2))]
    inputs = [tensor("input") for _ in range(rng.randint(0, 2))]
    pool = [*inputs, *parameters]
    for k in range(ops):
        usable = [i for i in pool if i not in consumed]
        reads = rng.sample(usable, min(len(usable), rng.choice((0, 1, 1, 2, 3))))
        in_place: list[InPlace] = []
        outputs = []
        if reads and rng.random() < in_place_share:
            old = rng.choice([i for i in reads if i not in parameters] or reads)
            if old not in parameters:
                outputs.append(tensor("activation", tensors[old].nbytes))
                in_place.append(InPlace(output=outputs[0], input=old))
                consumed.add(old)
        outputs += [tensor("activation") for _ in range(rng.choice((1, 1, 1, 2)))]
        pool += outputs
        made.append(
            Op(
                name=f"op{k}",
                phase=rng.choice(("forward", "backward")),
                inputs=tuple(reads),
                outputs=tuple(outputs),
                in_place=tuple(in_place),
                recomputable=rng.random() < 0.9,
                random_state_bytes=16 if k % 4 in (1, 2) else 0,
            )
        )
    for old in parameters:
        if rng.random() < 0.8:
            gradient = rng.choice([i for i in pool if i not in consumed and i != old] or [old])
            new = tensor("parameter", tensors[old].nbytes, becomes=old)
            in_place = []
            if rng.random() < 0.8:
                in_place = [InPlace(output=new, input=old)]
                consumed.add(old)
            made.append(
                Op(
                    name=f"update{old}",
                    phase="update",
                    inputs=tuple(dict.fromkeys((old, gradient))),
                    outputs=(new,),
                    in_place=tuple(in_place),
                    recomputable=False,
                )
            )
    return Graph(name="random", tensors=tuple(tensors), ops=tuple(made))


def random_costs(rng: Random, graph: Graph) -> Costs:
    """Whole numbers half of the time, so that events fall on the same instant."""
    whole = rng.random() < 0.5

    def amount() -> float:
        return float(rng.randint(0, 3)) if whole else rng.uniform(0.0, 3.0)

    def streams(ids: tuple[int, ...]) -> tuple[Stream, ...]:
        return tuple(
            Stream(tensor=i, nbytes=2 * graph.tensors[i].nbytes, seconds=amount(), joules=amount())
            for i in ids
            if rng.random() < 0.5
        )

    ops = []
    for op in graph.ops:
        variants = {
            "plain": Run(seconds=amount(), joules=amount(), workspace_bytes=rng.choice((0, 0, 50)))
        }
        if rng.random() < 0.4:
            variants["streamed"] = Run(
                seconds=amount(),
                joules=amount(),
                workspace_bytes=rng.choice((0, 8)),
                reads=streams(op.inputs),
                writes=streams(op.outputs),
            )
        ops.append(variants)
    return Costs(
        graph=graph.fingerprint,
        device="random",
        ops=tuple(ops),
        tensors=tuple(
            Transfer(
                in_seconds=amount(), in_joules=amount(), out_seconds=amount(), out_joules=amount()
            )
            for _ in graph.tensors
        ),
        idle_watts=rng.choice((0.0, 0.0, 0.5)),
        duplex=rng.random() < 0.5,
        compute_speed_in_overlap=rng.choice((1.0, 1.0, 0.5, 0.25)),
        transfer_speed_in_overlap=rng.choice((1.0, 1.0, 0.5)),
    )


def random_budget(rng: Random, graph: Graph) -> Budget:
    total = sum(tensor.nbytes for tensor in graph.tensors)
    places: tuple[Start, ...] = ("ram", "ram", "store", "both")
    budget = Budget(
        ram_bytes=rng.choice((None, total, total, rng.randint(0, total + 1))),
        store_bytes=rng.choice((None, None, total, rng.randint(0, total + 1))),
        deadline_seconds=rng.choice((None, None, rng.uniform(0, 60))),
        transfers=rng.choice(("serial", "overlap", "overlap", "free")),
        start={i: rng.choice(places) for i in graph.given},
        end={
            i: rng.choice(("ram", "store", "either", "both"))
            for i in range(len(graph.tensors))
            if rng.random() < 0.05
        },
        recompute=rng.random() < 0.9,
        paging=rng.random() < 0.9,
    )
    return replace(budget, pinned=random_pinned(rng, graph, budget))


def random_pinned(rng: Random, graph: Graph, budget: Budget) -> tuple[int, ...]:
    """Nothing half of the time; else some of what starts in RAM, consumed tensors too."""
    if rng.random() < 0.5:
        return ()
    consumed = {i for op in graph.ops for i in op.consumed}
    return tuple(
        i
        for i, place in budget.start.items()
        if place != "store" and (i in consumed or budget.end.get(i) != "store")
        if rng.random() < 0.6
    )


def random_schedule(rng: Random, graph: Graph, costs: Costs, budget: Budget) -> Schedule:
    """A walk that mostly makes sense: ops in order, paging, freeing and recomputing between."""
    steps: list[Instruction] = []
    ram = {i for i, place in budget.start.items() if place != "store"}
    store = {i for i, place in budget.start.items() if place != "ram"}

    def compute(k: int, depth: int) -> None:
        op = graph.ops[k]
        variant = rng.choice(list(costs.ops[k]))
        run = costs.ops[k][variant]
        reads = {s.tensor for s in run.reads}
        writes = {s.tensor for s in run.writes}
        for i in op.inputs:
            fetch(i, depth)
            if i in reads and i not in store:
                steps.append(PageOut(i))
                store.add(i)
        steps.append(Compute(k, variant))
        ram.difference_update(op.consumed)
        store.difference_update(op.consumed)
        ram.update(i for i in op.outputs if i not in writes)
        store.update(writes)

    def fetch(i: int, depth: int) -> None:
        if i in ram:
            return
        maker = graph.producer[i]
        if i in store and (maker is None or rng.random() < 0.7):
            steps.append(PageIn(i))
            ram.add(i)
        elif maker is not None and depth < 4:
            compute(maker, depth + 1)

    for k in range(len(graph.ops)):
        compute(k, 0)
        for i in sorted(ram):
            if rng.random() < 0.15:
                if rng.random() < 0.7:
                    steps.append(PageOut(i))
                    store.add(i)
                if rng.random() < (0.05 if i in budget.pinned else 0.7):
                    steps.append(Free(i))
                    ram.discard(i)
    for i, place in sorted(budget.end.items()):
        if place in ("store", "both") and i in ram and i not in store:
            steps.append(PageOut(i))
        if place in ("ram", "both") and i in store and i not in ram:
            steps.append(PageIn(i))
    return tuple(steps)


def mutate(rng: Random, schedule: Schedule, graph: Graph) -> Schedule:
    """A few instructions dropped, doubled, swapped or invented."""
    steps = list(schedule)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(steps))
        kind = rng.randrange(4)
        if kind == 0 and len(steps) > 1:
            del steps[at]
        elif kind == 1:
            steps.insert(rng.randrange(len(steps) + 1), steps[at])
        elif kind == 2:
            other = rng.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
        else:
            tensor = rng.randrange(len(graph.tensors))
            invented: Instruction = rng.choice(
                (
                    Compute(rng.randrange(len(graph.ops))),
                    PageOut(tensor),
                    PageIn(tensor),
                    Free(tensor),
                )
            )
            steps.insert(at, invented)
    return tuple(steps)
