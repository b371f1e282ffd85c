"""Instances: the problem files of the released POET code, read into Graph + Costs.

An instance lists nodes in topological order; each computes one tensor, so op i and tensor i are
node i. Nothing exists at the start and nothing is wanted at the end. In the paper's model transfers
cost joules but no time; the files carry their seconds all the same.
"""

from functools import cached_property
from pathlib import Path

import msgspec

from poet.values.device import MAX_AMOUNT, PLAIN, Costs, Run, Transfer
from poet.values.files import decode_json, read_bytes
from poet.values.graph import MAX_BYTES, Graph, Op, Tensor, check_range


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One computation and its output, as the file has it."""

    name: str
    deps: tuple[int, ...]
    backward: bool
    output_bytes: int
    compute_joules: float
    compute_seconds: float
    page_in_joules: float
    page_out_joules: float
    page_in_seconds: float
    page_out_seconds: float

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, int | float):
                check_range(field, value, MAX_BYTES if field == "output_bytes" else MAX_AMOUNT)


class InstanceFile(
    msgspec.Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True
):
    """The file's own layout. The three sums are for people; POET computes its own."""

    name: str
    floor_bytes: int | None = None
    forward_bytes: int | None = None
    parameter_bytes: int | None = None
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        for field in ("floor_bytes", "forward_bytes", "parameter_bytes"):
            check_range(field, getattr(self, field) or 0, MAX_BYTES)
        for i, node in enumerate(self.nodes):
            for j in node.deps:
                if not 0 <= j < len(self.nodes):
                    raise ValueError(
                        f"node {i} ({node.name}) depends on node {j}; "
                        f"there are nodes 0 to {len(self.nodes) - 1}"
                    )
        _ = self.graph

    @cached_property
    def graph(self) -> Graph:
        return Graph(
            name=self.name,
            tensors=tuple(
                Tensor(
                    name=node.name,
                    nbytes=node.output_bytes,
                    role="gradient" if node.backward else "activation",
                )
                for node in self.nodes
            ),
            ops=tuple(
                Op(
                    name=node.name,
                    phase="backward" if node.backward else "forward",
                    inputs=tuple(dict.fromkeys(node.deps)),
                    outputs=(i,),
                )
                for i, node in enumerate(self.nodes)
            ),
        )

    @property
    def costs(self) -> Costs:
        return Costs(
            graph=self.graph.fingerprint,
            device=f"as in {self.name}",
            ops=tuple(
                {PLAIN: Run(seconds=node.compute_seconds, joules=node.compute_joules)}
                for node in self.nodes
            ),
            tensors=tuple(
                Transfer(
                    in_seconds=node.page_in_seconds,
                    in_joules=node.page_in_joules,
                    out_seconds=node.page_out_seconds,
                    out_joules=node.page_out_joules,
                )
                for node in self.nodes
            ),
        )


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A graph together with its costs."""

    graph: Graph
    costs: Costs


def read_instance(path: str | Path) -> Instance:
    return decode_instance(read_bytes(path), path)


def decode_instance(data: bytes, path: str | Path) -> Instance:
    file = decode_json(data, InstanceFile, path)
    return Instance(graph=file.graph, costs=file.costs)
