"""Plans for tests of reports: a small one with chosen names, one of many tensors, none."""

from typing import Any

from poet import (
    Budget,
    Compute,
    Costs,
    Free,
    Graph,
    Op,
    PageIn,
    PageOut,
    Plan,
    Run,
    Tensor,
    Transfer,
    check,
)
from poet.values.graph import Role
from poet.values.schedule import Instruction, Transfers

HOSTILE = "</script><img src=x onerror='hacked=1'><a href='//x'>y</a>&amp;$\\f{"


def _costs(graph: Graph, device: str, idle_watts: float = 0.0) -> Costs:
    return Costs(
        graph=graph.fingerprint,
        device=device,
        ops=tuple(
            {"plain": Run(seconds=0.001 * (k % 7 + 1), joules=0.002, workspace_bytes=64 * (k % 3))}
            for k in range(len(graph.ops))
        ),
        tensors=(Transfer(in_seconds=5e-4, in_joules=1e-4, out_seconds=4e-4, out_joules=2e-4),)
        * len(graph.tensors),
        idle_watts=idle_watts,
    )


def claimed(plan: dict[str, Any]) -> Plan:
    """A plan that claims what its replay gives."""
    report = check(Plan(**plan, status="unknown"))
    assert report.violation is None, report.violation
    gap = 0.01
    return Plan(
        **plan,
        status="feasible",
        joules=report.joules,
        seconds=report.seconds,
        peak_bytes=report.peak_bytes,
        bound_joules=report.joules * (1 - gap),
        bound_source="certified",
        gap=1 - (report.joules * (1 - gap)) / report.joules,
        floor_bytes=1024,
        solver="by hand",
    )


def small(name: str = "layer", transfers: Transfers = "overlap") -> Plan:
    """A parameter in the store, two activations of which one is remade and one paged, a gradient.

    Everything bears the one name.
    """
    roles: tuple[Role, ...] = ("parameter", "activation", "activation", "gradient", "parameter")
    tensors = tuple(
        Tensor(name=name, nbytes=nbytes, role=role, becomes=0 if n == 4 else None)
        for n, (role, nbytes) in enumerate(zip(roles, (2048, 8192, 4096, 2048, 2048), strict=True))
    )
    graph = Graph(
        name=name,
        tensors=tensors,
        ops=(
            Op(name=name, inputs=(0,), outputs=(1,)),
            Op(name=name, inputs=(1,), outputs=(2,)),
            Op(name=name, inputs=(1, 2), outputs=(3,), phase="backward"),
            Op(name=name, inputs=(0, 3), outputs=(4,), phase="update", recomputable=False),
        ),
    )
    steps: tuple[Instruction, ...] = (
        PageIn(0), Compute(0), Compute(1), PageOut(2), Free(1), Free(2), Compute(0), PageIn(2),
        Compute(2), Free(1), Free(2), Compute(3), Free(0), Free(3), PageOut(4), Free(4),
    )  # fmt: skip
    return claimed(
        {
            "graph": graph,
            "costs": _costs(graph, name, idle_watts=0.5),
            "budget": Budget(
                ram_bytes=20_000, transfers=transfers, start={0: "store"}, end={4: "store"}
            ),
            "schedule": steps,
        }
    )


def chain(length: int = 350) -> Plan:
    """Forward and back along a chain: 2 × `length` tensors, a third remade, a third paged."""
    tensors, ops = [], []
    for n in range(length):
        tensors.append(Tensor(name=f"block{n}.out", nbytes=128 << n % 7))
        ops.append(Op(name=f"block{n}", inputs=() if n == 0 else (n - 1,), outputs=(n,)))
    for n in range(length, 2 * length):
        forward = 2 * length - 1 - n
        tensors.append(Tensor(name=f"block{forward}.grad", nbytes=8192, role="gradient"))
        reads = (forward,) if n == length else (forward, n - 1)
        ops.append(Op(name=f"block{forward}", inputs=reads, outputs=(n,), phase="backward"))
    graph = Graph(name="a chain", tensors=tuple(tensors), ops=tuple(ops))
    steps: list[Instruction] = []
    for n in range(length):
        steps.append(Compute(n))
        if n and (n - 1) % 3 == 1:
            steps.append(Free(n - 1))
        elif n and (n - 1) % 3 == 2:
            steps += [PageOut(n - 1), Free(n - 1)]
    for n in range(length, 2 * length):
        forward = 2 * length - 1 - n
        if forward < length - 1 and forward % 3 == 1:
            steps.append(Compute(forward))
        elif forward < length - 1 and forward % 3 == 2:
            steps.append(PageIn(forward))
        steps.append(Compute(n))
        steps += [Free(forward)] if n == length else [Free(forward), Free(n - 1)]
    return claimed(
        {
            "graph": graph,
            "costs": _costs(graph, "a board"),
            "budget": Budget(ram_bytes=4_000_000, transfers="serial"),
            "schedule": tuple(steps),
        }
    )


def impossible(name: str = "layer") -> Plan:
    """What the planner answers when nothing fits."""
    plan = small(name)
    return Plan(
        status="infeasible",
        reason=f"{name} needs 12,288 bytes at once; the budget is 1,000. Try --ram 12288.",
        floor_bytes=12288,
        budget=Budget(ram_bytes=1000, start={0: "store"}, end={4: "store"}),
        graph=plan.graph,
        costs=plan.costs,
    )
