"""The partition: all that is known here of how torch splits a joint graph, and of which versions.

Inductor asks `config.custom_partitioner_fn`, if there is one, to split forward from backward pass.
Ours lets torch's own partitioner do that, with all its care for random states, effects and symbols,
but for one question: which values are saved. That is its function `choose_saved_values_set`.

Inductor has replaced random operators by functions of a seed before it asks, and seeds are always
saved, so what is made again has the bits that it had.
"""

import itertools
import operator
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch._functorch.partitioners as partitioners
import torch._inductor.config as inductor_config
from torch import fx
from torch._dynamo.exc import Unsupported, UserError
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from poet.errors import PoetError
from poet.training.compiling.joint import Joint, JointNode, Kind, Phase
from poet.training.compiling.splitting import Split, Step

with warnings.catch_warnings():  # torch's own, of torch's own
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch._inductor.compile_fx import compile_fx

Choice = Callable[[Joint], Split | None]
"""Given both passes, the backward pass that there shall be; None for torch's own choice."""
_ONE_AT_A_TIME = threading.RLock()
_NUMBERS = itertools.count()
_RANDOM_FLOPS = 60
"""For one number: ten rounds of Philox."""
_SEEDED = ("inductor_lookup_seed", "inductor_random", "inductor_randint")
"""Inductor's operators that give the same numbers for the same seed."""


def check_torch() -> None:
    """Refuse a torch that splits graphs in another way than the versions that are known here."""
    has_hook = hasattr(inductor_config, "custom_partitioner_fn")
    if not has_hook or not hasattr(partitioners, "choose_saved_values_set"):
        raise PoetError(
            f"poet.compile does not know how torch {torch.__version__} splits forward from "
            "backward pass: it works with torch>=2.11,<2.14. poet.wrap works without"
        )


def backend(choose: Choice) -> Callable[..., Any]:
    """Inductor as a backend of torch.compile, with another choice of what is saved."""

    def compiled(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        # Torch keeps split graphs by what comes before the choice; code, by what comes after it.
        with functorch_config.patch(enable_autograd_cache=False):
            patches = {"custom_partitioner_fn": _Partition(choose)}
            return compile_fx(gm, example_inputs, config_patches=patches)

    return compiled


def whole(function: Callable[..., Any], choose: Choice) -> Callable[..., Any]:
    """A function compiled as one graph of fixed shapes, whatever else was compiled before."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # Torch keeps what it compiled by code, and only so many versions of each.
    run.__code__ = run.__code__.replace(co_name=f"compiled_{next(_NUMBERS)}")
    return torch.compile(run, backend=backend(choose), fullgraph=True, dynamic=False)


def why_not(error: BaseException) -> PoetError | None:
    """What stands in the way of compiling, for people; None where the error is another one."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = getattr(cause, "inner_exception", None) or cause.__cause__ or cause.__context__
    for each in chain:
        if isinstance(each, PoetError):
            return each
    for each in chain:
        if type(each).__name__ == "InvalidCxxCompiler":
            return PoetError(
                "poet.compile needs a C++ compiler, and torch found none that works: install g++, "
                "or name one in CXX. poet.wrap needs none"
            )
        if isinstance(each, Unsupported | UserError):
            lines = [line.strip() for line in str(each).splitlines() if line.strip()]
            return PoetError(
                "poet.compile plans one graph, and torch.compile cannot make one of this model: "
                f"{'; '.join(lines[:6])}. Take that out of the forward pass, or use poet.wrap"
            )
    return None


class _Partition(CustomPartitionerFn):
    """Splits a joint graph by a choice."""

    def __init__(self, choose: Choice) -> None:
        self._choose = choose

    def uuid(self) -> str:
        return "poet"

    def __reduce__(self) -> tuple[Any, ...]:
        """For the keys of torch's caches of code, which have the split graph in them."""
        return str, (self.uuid(),)

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **more: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        made_count = more["num_fwd_outputs"]

        def choose(graph: fx.Graph, info: Any, memory_budget: float = 1) -> list[fx.Node]:
            split = self._choose(joint_of(graph, info, made_count))
            if split is None:
                return usual(graph, info, memory_budget)
            return _Rewriting(graph, info, made_count, split).done()

        with _ONE_AT_A_TIME:
            usual = partitioners.choose_saved_values_set
            partitioners.choose_saved_values_set = choose  # type: ignore[assignment]
            try:
                return partitioners.min_cut_rematerialization_partition(gm, joint_inputs, **more)
            finally:
                partitioners.choose_saved_values_set = usual


def joint_of(graph: fx.Graph, info: Any, made_count: int) -> Joint:
    """The nodes of a joint graph as values."""
    kinds = partitioners.get_default_op_list()
    written = _written(graph)
    nodes = []
    for node in graph.nodes:
        if node.op == "output":
            continue
        if node in info.tangents_closure:
            phase: Phase = "backward"
        else:
            phase = "forward" if node in info.required_fw_nodes else "either"
        nodes.append(
            JointNode(
                name=node.name,
                kind=_kind(node, kinds, phase),
                inputs=tuple(each.name for each in node.all_input_nodes),
                nbytes=_nbytes(node),
                phase=phase,
                flops=_flops(node),
                once=_must_run_once(node, written),
            )
        )
    outputs = _outputs(graph)
    made, gradients = outputs[:made_count], outputs[made_count:]
    return Joint(
        nodes=tuple(nodes),
        made=tuple(each.name for each in made if each is not None),
        gradients=tuple(each.name for each in gradients if each is not None),
    )


def _outputs(graph: fx.Graph) -> list[fx.Node | None]:
    """What both passes give, by place; None where nothing is."""
    end = next(iter(graph.find_nodes(op="output")))
    leaves = tree_leaves(end.args, is_leaf=lambda each: each is None)
    return [each if isinstance(each, fx.Node) else None for each in leaves]


def _written(graph: fx.Graph) -> set[Any]:
    """What a pass writes to: buffers, as a rule."""
    return {node.args[0] for node in graph.nodes if node.target is torch.ops.aten.copy_.default}


def _kind(node: fx.Node, kinds: Any, phase: Phase) -> Kind:
    if node.op == "placeholder":
        return "gradient" if phase == "backward" else "given"
    if node.op != "call_function":
        return "given"
    if node.target is operator.getitem:
        return "part"
    if node.target is torch.ops.aten.copy_.default:
        return "write"
    if node.all_input_nodes and (kinds.is_view(node) or _looks(node)):
        return "view"
    name = getattr(node.target, "__name__", "").partition(".")[0]
    if not kinds.is_fusible(node) and name not in _SEEDED:
        return "kernel"
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return "fusible"
    most = max((_numel(each) for each in node.all_input_nodes), default=0)
    return "fusible" if value.numel() < most else "elementwise"


def _looks(node: fx.Node) -> bool:
    """Whether an operator's result is a view of its first argument."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target in (torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default):
        return True
    about = node.target._schema.returns
    return len(about) == 1 and about[0].alias_info is not None and not about[0].alias_info.is_write


def _must_run_once(node: fx.Node, written: set[Any]) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE:
        return True
    if any(each in written for each in node.all_input_nodes):
        return True  # the buffer has another value by the time of the backward pass
    target: Any = node.target
    name = getattr(target, "__name__", "").partition(".")[0]
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if target._schema.is_mutable or target.namespace not in ("aten", "prims"):
        return True
    return torch.Tag.nondeterministic_seeded in target.tags and name not in _SEEDED


def _numel(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0


def _nbytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    nbytes = value.numel() * value.element_size()
    if not isinstance(nbytes, int):
        raise PoetError(
            f"{node.name} has a size that is not known when the model is compiled: a budget in "
            "bytes needs fixed shapes"
        )
    return nbytes


def _flops(node: fx.Node) -> int:
    packet = getattr(node.target, "_overloadpacket", None)
    count = flop_registry.get(packet)
    if count is None:
        is_random = getattr(node.target, "__name__", "").startswith("inductor_rand")
        return _RANDOM_FLOPS * _numel(node) if is_random else 0

    def value(each: Any) -> Any:
        return each.meta.get("val") if isinstance(each, fx.Node) else each

    args, kwargs = tree_map(value, (node.args, node.kwargs))
    try:
        return int(count(*args, **kwargs, out_val=node.meta.get("val")))
    except (TypeError, ValueError, AssertionError, IndexError):
        return 0  # a formula that does not know this call: memory alone counts


class _Rewriting:
    """A joint graph whose backward pass becomes that of a split."""

    def __init__(self, graph: fx.Graph, info: Any, made_count: int, split: Split) -> None:
        self.graph, self.split = graph, split
        self.outputs = _outputs(graph)[made_count:]
        self.forward = info.required_fw_nodes
        self.nodes = {node.name: node for node in graph.nodes}
        self.end = next(iter(graph.find_nodes(op="output")))
        kinds = partitioners.get_default_op_list()
        self.views: set[fx.Node] = set()
        self.owner: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            phase: Phase = "backward" if node in info.tangents_closure else "forward"
            is_view = _kind(node, kinds, phase) == "view"
            if is_view:
                self.views.add(node)
            self.owner[node] = self.owner[node.all_input_nodes[0]] if is_view else node
        self.copies: dict[tuple[fx.Node, int], fx.Node] = {}
        self.late = {self.nodes[name] for name in split.late if name in self.nodes}
        self.order: list[fx.Node] = []
        self.placed: set[fx.Node] = set()

    def done(self) -> list[fx.Node]:
        """Rewrite it, and give the nodes whose values are saved."""
        writes = {node for node in self.graph.nodes if node.target is torch.ops.aten.copy_.default}
        for node in self.graph.find_nodes(op="placeholder"):  # in the order of the arguments
            self._place(node)
        early = [
            node
            for node in self.graph.nodes
            if node not in self.late and node not in writes and node is not self.end
        ]
        soon = [node for node in early if node not in self.forward]
        for node in early:
            if node in self.forward:
                self._place(node)
                for other in [
                    each for each in soon if self.placed.issuperset(each.all_input_nodes)
                ]:
                    self._place(other)
                    soon.remove(other)
        for node in soon:
            self._place(node)
        for step in self.split.steps:
            for name in step.nodes:
                self._run(self.nodes[name], step)
        for node in list(self.graph.nodes):
            if node is not self.end:
                self._place(node)
        for node in self.order:
            self.end.prepend(node)
        self.graph.eliminate_dead_code()
        self.graph.lint()
        return self._saved()

    def _run(self, node: fx.Node, step: Step) -> None:
        if not step.copy:
            if node not in self.placed:  # it may be part of several loops
                node.args = fx.map_arg(node.args, lambda each: self._read(each, step))
                node.kwargs = fx.map_arg(node.kwargs, lambda each: self._read(each, step))
                self._place(node)
            return
        self._copy(node, step.copy, step)

    def _copy(self, node: fx.Node, number: int, step: Step) -> fx.Node:
        with self.graph.inserting_before(self.end):
            made = self.graph.node_copy(node, lambda each: self._read(each, step, number))
        made.meta["partitioner_tag"] = "is_backward"
        self.copies[node, number] = made
        self.late.add(made)
        self._place(made)
        return made

    def _read(self, node: fx.Node, step: Step, within: int = 0) -> fx.Node:
        """What a step reads where the first pass reads this node."""
        if within and (node, within) in self.copies:
            return self.copies[node, within]
        owner = self.owner[node]
        number = within if (owner, within) in self.copies else step.reads.get(owner.name, 0)
        if not number:
            return node
        found = self.copies.get((node, number))
        return self._copy(node, number, _of(owner, number)) if found is None else found

    def _place(self, node: fx.Node) -> None:
        waiting = [node]
        while waiting:
            top = waiting[-1]
            missing = [each for each in top.all_input_nodes if each not in self.placed]
            waiting += reversed(missing)
            if not missing:
                waiting.pop()
                if top not in self.placed:
                    self.placed.add(top)
                    self.order.append(top)

    def _saved(self) -> list[fx.Node]:
        alive = [node for node in self.graph.nodes if node is not self.end]
        waiting = [each for node in alive if node in self.late for each in node.all_input_nodes]
        waiting += [each for each in self.outputs if each is not None]
        saved: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node in self.late or node in saved:
                continue
            if node in self.views:
                waiting += node.all_input_nodes
            else:
                saved.add(node)
        return [node for node in alive if node in saved]


def _of(owner: fx.Node, number: int) -> Step:
    """A view of a copy reads that copy."""
    return Step((), number, {owner.name: number})
