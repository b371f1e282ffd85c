"""Tiled variants: what ops take that run piece by piece, with operands in the store.

For each op few of the many ways are offered, chosen by the budget: for all, a half and a quarter of
it the one that takes the fewest seconds and the one that takes the fewest joules, as long as the op
does not fit there whole; and always the one that needs the least RAM, so that the floor is true.
Compute takes what it takes with all in RAM, or as many times that as a board's profile says of such
tiles; each run of bytes that is moved has the store's latency. Without a profile both are the way
that moves least; with one a way may compute for less time and move far more, at a store's watts.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import msgspec

from poet.calls.pieces.choices import Choice
from poet.calls.pieces.ways import Way, streamable, way_of
from poet.calls.torch_tiles import torch_piece_bytes
from poet.calls.workspace import way_workspace_bytes, workspace_bytes
from poet.costs.counted import times_in_tiles
from poet.planner.proof.floor import working_set_bytes
from poet.values.board_profile import BoardProfile
from poet.values.device import PLAIN, Costs, Device, Run, Stream
from poet.values.graph import Graph

SHARES = (1.0, 0.5, 0.25)
"""Of the budget: an op that takes all of it leaves nothing for others to stay."""
LEAST_TILES, MOST_TILES = 256, 65_536
"""Bytes that the tiles of an op may take together: fewer are not looked for, and more only where
the budget has sixteen times as much."""
_MOST_GROUPS = 6
"""So many groups of tensors of an op, the largest, are streamed or not by themselves; the others
only where all are."""
_GRAIN = 2_048
"""Limits of tiles are multiples of so much, so that layers that repeat have the same."""
_EQUAL = 1e-9
"""Sums of the same numbers in another order differ by less."""


class _Found(NamedTuple):
    name: str
    run: Run
    need: int
    """The RAM that it takes by itself."""

    @property
    def seconds(self) -> float:
        moved = sum(stream.seconds for stream in (*self.run.reads, *self.run.writes))
        return self.run.seconds + moved

    @property
    def joules(self) -> float:
        return self.run.joules + self.run.stream_joules


def with_tiles(
    costs: Costs,
    graph: Graph,
    device: Device,
    ram_bytes: int | None,
    in_torch: bool = False,
    profile: BoardProfile | None = None,
) -> Costs:
    """The same costs, with variants that run piece by piece for every op that can.

    `in_torch` says that PyTorch's kernels run them, which take more beside the tiles, and draw
    random numbers all at once.
    """
    ops = tuple(
        {**runs, **_Op(graph, k, runs[PLAIN], device, in_torch, profile).variants(ram_bytes)}
        for k, runs in enumerate(costs.ops)
    )
    return msgspec.structs.replace(costs, ops=ops)


class _Op:
    """The ways of one op."""

    def __init__(
        self,
        graph: Graph,
        k: int,
        plain: Run,
        device: Device,
        in_torch: bool = False,
        profile: BoardProfile | None = None,
    ) -> None:
        self.graph, self.k, self.plain, self.device = graph, k, plain, device
        self.op, self.in_torch, self.profile = graph.ops[k], in_torch, profile
        size = {
            group: sum(graph.tensors[i].nbytes for i in group) for group in streamable(graph, k)
        }
        self.groups = sorted(size, key=lambda group: (-size[group], min(group)))
        # What a measured workspace has beyond what its calls explain is the kernels' own.
        self.own = max(0, plain.workspace_bytes - workspace_bytes(self.op, graph))

    def variants(self, ram_bytes: int | None) -> dict[str, Run]:
        if self.in_torch and self.op.random_state_bytes:
            return {}
        smallest = self.smallest()
        if smallest is None:
            return {}
        limits = () if ram_bytes is None else [int(share * ram_bytes) for share in SHARES]
        found = [each for limit in limits for each in self.cheapest(limit)]
        return {each.name: each.run for each in (*found, smallest)}

    def choices(self) -> Iterator[Choice]:
        """What may be streamed, from little to everything."""
        some = self.groups[:_MOST_GROUPS]
        sets = [each for count in range(1, len(some) + 1) for each in combinations(some, count)]
        if len(self.groups) > len(some):
            sets.append(tuple(self.groups))
        for each in sets:
            chosen = frozenset[int]().union(*each)
            yield Choice(chosen & set(self.op.inputs), chosen & set(self.op.outputs), 0)

    def found(self, choice: Choice, limit: int) -> _Found | None:
        """A way with tiles of at most so many bytes, if there is one."""
        choice = msgspec.structs.replace(choice, limit=limit)
        way = way_of(self.graph, self.k, choice)
        if way is None:
            return None
        run = self.costed(way)
        return _Found(choice.name, run, working_set_bytes(self.graph, self.op, run))

    def smallest(self) -> _Found | None:
        """The way that needs the least RAM: all is streamed, or as much as can be, in the smallest
        tiles."""
        best: _Found | None = None
        for choice in reversed(list(self.choices())):
            limit = LEAST_TILES
            made = None
            while made is None and limit <= 1 << 30:
                made = self.found(choice, limit)
                limit += limit // 8
            if made is not None and (best is None or made.need < best.need):
                best = made
            if best is not None and len(choice.streamed) < len(self.groups) - 1:
                break
        return best

    def cheapest(self, ram_bytes: int) -> list[_Found]:
        """The ways that take least in so much RAM, in seconds and in joules; none where the op fits
        whole, or not at all."""
        if working_set_bytes(self.graph, self.op, self.plain) <= ram_bytes:
            return []
        found = list(self.within(ram_bytes))
        if not found:
            return []
        fastest = min(found, key=lambda each: each.seconds)
        least = min(found, key=lambda each: each.joules)
        return [fastest, least] if least.joules < fastest.joules * (1 - _EQUAL) else [fastest]

    def within(self, ram_bytes: int) -> Iterator[_Found]:
        """A way for each choice that fits so much RAM."""
        for choice in self.choices():
            room = ram_bytes - self.beside(choice)
            if room < LEAST_TILES:
                continue
            room = room // _GRAIN * _GRAIN if room > _GRAIN else 1 << (room.bit_length() - 1)
            most = max(MOST_TILES, ram_bytes // 16 // _GRAIN * _GRAIN)
            made = self.found(choice, min(room, most))
            if made is not None and made.need <= ram_bytes:
                yield made

    def beside(self, choice: Choice) -> int:
        """Bytes of the tensors that are whole in RAM."""
        seated = {pair.output for pair in self.op.in_place if pair.input not in choice.reads}
        there = [i for i in self.op.inputs if i not in choice.reads]
        there += [i for i in self.op.outputs if i not in choice.writes | seated]
        return sum(self.graph.tensors[i].nbytes for i in there)

    def costed(self, way: Way) -> Run:
        device, times = self.device, 1.0
        if self.profile is not None:
            times = times_in_tiles(self.graph, self.k, way, self.profile)
        kernels = torch_piece_bytes(way) if self.in_torch else {}
        streams: dict[bool, list[Stream]] = {False: [], True: []}
        for (i, is_written), (nbytes, transfers) in way.moved.items():
            seconds, watts = device.page_in_seconds(nbytes, transfers), device.page_in_watts
            if is_written:
                seconds, watts = device.page_out_seconds(nbytes, transfers), device.page_out_watts
            streams[is_written].append(
                Stream(tensor=i, nbytes=nbytes, seconds=seconds, joules=seconds * watts)
            )
        return Run(
            seconds=self.plain.seconds * times,
            joules=self.plain.joules * times,
            workspace_bytes=self.own + way_workspace_bytes(self.op, self.graph, way, kernels),
            reads=tuple(streams[False]),
            writes=tuple(streams[True]),
        )
