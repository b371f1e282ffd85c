"""Joint: the forward and backward pass that a compiler is about to split, as values without torch.

A `Joint` lists the nodes of the graph in order. What a compiler fuses into one loop never exists in
memory, so `planning_graph` folds views into what they look at, and elementwise nodes into the one
group of nodes that reads them, before it makes a `Graph` with `Costs`. Between the passes lies one
op more, the user's loop: it reads what the forward pass made and gives the gradients of that.

Parameters, buffers and inputs are somebody else's and take no bytes here: a budget for this graph
is what may be taken beside them. Nothing is planned here.
"""

from collections import Counter
from typing import Literal, NamedTuple

import msgspec

from poet.values.device import PLAIN, Costs, Run, Transfer
from poet.values.graph import Graph, InPlace, Op, Role, Tensor
from poet.values.schedule import Budget, End

Kind = Literal["given", "gradient", "view", "part", "elementwise", "fusible", "kernel", "write"]
"""`given`: parameters, buffers and inputs. `gradient`: of an output, given to the backward pass.
`part`: one of several results of a node. `fusible`: may end a loop that elementwise nodes begin,
as a sum does. `kernel`: called on its own, what it reads and makes is in memory. `write`: puts a
value where the model has it."""
Phase = Literal["forward", "backward", "either"]
"""`either`: only the backward pass asks for it, but it follows from the forward pass's values."""

FLOPS_PER_SECOND = 5e10
BYTES_PER_SECOND = 1e10
"""Only their ratio counts: how much dearer a kernel is than going over its memory once more."""
START_SECONDS = 2e-6


class JointNode(msgspec.Struct, frozen=True):
    """A node: what it reads, what its result takes. One that must run once draws random numbers,
    or reads a buffer that the forward pass writes."""

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    nbytes: int = 0
    phase: Phase = "forward"
    flops: int = 0
    once: bool = False


class Joint(msgspec.Struct, frozen=True):
    """Both passes. `made` is what the forward pass gives, `gradients` what the backward pass
    does."""

    nodes: tuple[JointNode, ...]
    made: tuple[str, ...]
    gradients: tuple[str, ...]


class PlanningGraph(NamedTuple):
    """What is planned, and the way back: the node behind each tensor, those behind each op, the op
    between the passes, and the nodes that run in the backward pass alone."""

    graph: Graph
    costs: Costs
    budget: Budget
    node_of: tuple[str, ...]
    nodes_of: tuple[tuple[str, ...], ...]
    between: int
    late: frozenset[str]


class _Group:
    """Nodes that run as one; the last of them, which comes first here, makes what others read."""

    def __init__(self, root: JointNode, is_early: bool) -> None:
        self.nodes = [root]
        self.is_early = is_early
        self.inputs: list[str] = []
        self.outputs: list[str] = []

    def look(self, owner: dict[str, str]) -> None:
        """Find what it reads."""
        inner = {node.name for node in self.nodes}
        seen = dict.fromkeys(owner[name] for node in self.nodes for name in node.inputs)
        self.inputs = [name for name in seen if name not in inner]

    def in_order(self, place: dict[str, int]) -> tuple[str, ...]:
        """All its nodes, the parts of the last among them."""
        run = sorted((node.name for node in self.nodes), key=place.__getitem__)
        return (*run, *(name for name in self.outputs if name != self.nodes[0].name))

    @property
    def once(self) -> bool:
        return not self.is_early or any(node.once for node in self.nodes)


def planning_graph(joint: Joint) -> PlanningGraph:
    """What is planned of the two passes, with no limit on RAM yet."""
    owner = _owners(joint)
    early, late = _in_order(joint, owner)
    groups = _dissolved(joint, _fused(joint, early, late, owner), owner)
    return _as_graph(joint, groups, owner, frozenset(node.name for node in late))


def _owners(joint: Joint) -> dict[str, str]:
    """For each node the one that owns the bytes it shows."""
    owner: dict[str, str] = {}
    for node in joint.nodes:
        owner[node.name] = owner[node.inputs[0]] if node.kind == "view" else node.name
    return owner


def _in_order(joint: Joint, owner: dict[str, str]) -> tuple[list[JointNode], list[JointNode]]:
    """The nodes that run in the forward pass, and those of the backward pass.

    What only the backward pass asks for is made in the forward pass where it is smaller than what
    it is made of, as a mask is: there it can be kept instead. Else it is made where it is needed.
    """
    nodes = {node.name: node for node in joint.nodes}
    early: set[str] = set()
    for node in joint.nodes:
        if node.phase == "forward":
            early.add(node.name)
        elif node.phase == "either" and all(name in early for name in node.inputs):
            sources = [nodes[owner[name]] for name in node.inputs]
            made_of = sum(each.nbytes for each in sources if each.kind != "given")
            if node.kind in ("view", "part") or node.once or node.nbytes < made_of:
                early.add(node.name)
    late: list[JointNode] = []
    placed = set(early)
    for last in joint.nodes:
        waiting = [last] if last.phase == "backward" else []
        while waiting:
            node = waiting[-1]
            missing = [nodes[name] for name in node.inputs if name not in placed]
            waiting.extend(reversed(missing))
            if not missing:
                waiting.pop()
                if node.name not in placed:
                    placed.add(node.name)
                    late.append(node)
    return _soon([node for node in joint.nodes if node.name in early]), late


def _soon(early: list[JointNode]) -> list[JointNode]:
    """Forward nodes as they are, and what only the backward pass asks for once it can be made."""
    order: list[JointNode] = []
    placed: set[str] = set()
    waiting = [node for node in early if node.phase == "either"]
    for node in (each for each in early if each.phase == "forward"):
        order.append(node)
        placed.add(node.name)
        for other in list(waiting):
            if placed.issuperset(other.inputs):
                order.append(other)
                placed.add(other.name)
                waiting.remove(other)
    return order + waiting


def _fused(
    joint: Joint, early: list[JointNode], late: list[JointNode], owner: dict[str, str]
) -> list[_Group]:
    """Nodes in groups: an elementwise node joins the group that alone reads it.

    One of the backward pass that is made of one large thing joins all that read it: they go over as
    much memory either way, and it need not exist.
    """
    nodes = {node.name: node for node in joint.nodes}
    kept = {owner[name] for name in (*joint.made, *joint.gradients)}
    readers: dict[str, list[JointNode]] = {}
    parts: dict[str, list[str]] = {}
    for node in (*early, *late):
        if node.kind == "part":
            parts.setdefault(node.inputs[0], []).append(node.name)
        elif node.kind != "view":
            for name in dict.fromkeys(owner[each] for each in node.inputs):
                readers.setdefault(name, []).append(node)
    joined: dict[str, list[_Group]] = {}
    groups: list[_Group] = []
    for is_early, some in ((False, late), (True, early)):
        for node in reversed(some):
            if node.kind in ("view", "part", "given", "gradient"):
                continue
            reading = {
                id(group): group
                for each in readers.get(node.name, [])
                for group in joined.get(each.name, [])
            }
            large = sum(
                2 * nodes[name].nbytes > node.nbytes
                for name in (owner[each] for each in node.inputs)
            )
            inline = len(reading) == 1 or (large <= 1 and not is_early)
            if (
                node.kind == "elementwise"
                and not node.once
                and node.name not in kept
                and reading
                and inline
                and all(each.kind in ("elementwise", "fusible") for each in readers[node.name])
                and all(group.is_early == is_early for group in reading.values())
            ):
                joined[node.name] = list(reading.values())
                for group in reading.values():
                    group.nodes.append(node)
                continue
            group = _Group(node, is_early)
            group.outputs = [
                name
                for name in parts.get(node.name, [node.name])
                if any(each.name in joined for each in readers.get(name, [])) or name in kept
            ]
            if group.outputs or node.kind == "write":
                joined[node.name] = [group]
                groups.append(group)
    for group in groups:
        group.look(owner)
    return groups[::-1]


def _dissolved(joint: Joint, groups: list[_Group], owner: dict[str, str]) -> list[_Group]:
    """The same without groups of elementwise nodes that all who read them may as well run.

    That is so where they need at most one large thing more for it, in the place of the result, and
    no more memory. Random numbers are dearer to make than to read, and not made twice unasked.
    """
    nodes = {node.name: node for node in joint.nodes}
    kept = {owner[name] for name in (*joint.made, *joint.gradients)}
    left = list(groups)
    for group in reversed(groups):
        name = group.nodes[0].name
        readers = [each for each in left if name in each.inputs]
        if (
            not readers
            or name in kept
            or any(node.kind != "elementwise" or node.once or node.flops for node in group.nodes)
            or any(each.nodes[0].kind not in ("elementwise", "fusible") for each in readers)
        ):
            continue
        nbytes = nodes[name].nbytes
        large = {
            each
            for each in group.inputs
            if nodes[each].kind != "given" and 2 * nodes[each].nbytes > nbytes
        }
        more = [large.difference(each.inputs) for each in readers]
        if any(len(each) > 1 or sum(nodes[n].nbytes for n in each) > nbytes for each in more):
            continue
        for reader in readers:
            reader.nodes += [node for node in group.nodes if node not in reader.nodes]
            reader.look(owner)
        left.remove(group)
    return left


def _in_place(
    group: _Group,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    tensors: list[Tensor],
    passing: set[str],
) -> tuple[InPlace, ...]:
    """An elementwise loop writes over what nobody reads after it."""
    if group.is_early or group.nodes[0].kind != "elementwise":
        return ()
    for i in inputs:
        if tensors[i].name in passing and tensors[i].nbytes == tensors[outputs[0]].nbytes:
            return (InPlace(output=outputs[0], input=i),)
    return ()


def _as_graph(
    joint: Joint, groups: list[_Group], owner: dict[str, str], late: frozenset[str]
) -> PlanningGraph:
    nodes = {node.name: node for node in joint.nodes}
    made = list(dict.fromkeys(owner[name] for name in joint.made))
    gradients = list(dict.fromkeys(owner[name] for name in joint.gradients))
    ids: dict[str, int] = {}
    tensors: list[Tensor] = []

    def tensor(name: str) -> int:
        if name not in ids:
            ids[name] = len(tensors)
            role: Role = (
                "parameter" if nodes[name].kind == "given"
                else "output" if name in made
                else "gradient" if name in gradients
                else "activation"
            )  # fmt: skip
            nbytes = 0 if nodes[name].kind == "given" else nodes[name].nbytes
            tensors.append(Tensor(name=name, nbytes=nbytes, role=role))
        return ids[name]

    ops: list[Op] = []
    runs: list[Run] = []
    nodes_of: list[tuple[str, ...]] = []
    between = -1
    written: list[str] = []

    def add(op: Op, seconds: float, names: tuple[str, ...] = ()) -> None:
        ops.append(op)
        nodes_of.append(names)
        runs.append(Run(seconds=seconds, joules=seconds))

    def come_between() -> int:
        inputs = dict.fromkeys((*made, *written))
        tangents = [node.name for node in joint.nodes if node.kind == "gradient"]
        add(
            Op(
                name="between the passes",
                phase="backward",
                inputs=tuple(map(tensor, inputs)),
                outputs=tuple(map(tensor, tangents)),
                recomputable=False,
            ),
            0.0,
        )
        return len(ops) - 1

    place = {node.name: at for at, node in enumerate(joint.nodes)}
    reads = Counter(name for group in groups for name in group.inputs)
    late_results = {name for group in groups if not group.is_early for name in group.outputs}
    passing = {name for name in late_results.difference(gradients) if reads[name] == 1}
    for group in groups:
        root = group.nodes[0]
        if not group.is_early and between < 0:
            between = come_between()
        if root.kind == "write":
            written += group.inputs
            continue
        moved = sum(nodes[name].nbytes for name in (*group.inputs, *group.outputs))
        flops = sum(node.flops for node in group.nodes)
        inputs = tuple(map(tensor, group.inputs))
        outputs = tuple(map(tensor, group.outputs))
        add(
            Op(
                name=root.name,
                phase="forward" if group.is_early else "backward",
                inputs=inputs,
                outputs=outputs,
                in_place=_in_place(group, inputs, outputs, tensors, passing),
                recomputable=not group.once,
            ),
            START_SECONDS + flops / FLOPS_PER_SECOND + moved / BYTES_PER_SECOND,
            group.in_order(place),
        )
    if between < 0:
        between = come_between()
    graph = Graph(name="joint", tensors=tuple(tensors), ops=tuple(ops))
    nothing = Transfer(in_seconds=0.0, in_joules=0.0, out_seconds=0.0, out_joules=0.0)
    costs = Costs(
        graph=graph.fingerprint,
        device="here",
        ops=tuple({PLAIN: run} for run in runs),
        tensors=(nothing,) * len(tensors),
    )
    ends: dict[int, End] = {ids[name]: "ram" for name in (*made, *gradients) if name in ids}
    held = [i for name, i in ids.items() if name in made or nodes[name].kind == "gradient"]
    pinned = {*graph.given, *held}
    budget = Budget(
        start=dict.fromkeys(graph.given, "ram"),
        end={**dict.fromkeys(graph.given, "ram"), **ends},
        pinned=tuple(sorted(pinned)),
        paging=False,
    )
    names = tuple(ids)
    return PlanningGraph(graph, costs, budget, names, tuple(nodes_of), between, late)
