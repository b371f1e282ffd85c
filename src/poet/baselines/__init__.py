"""The other ways to get a schedule, one file each, all with the signature of a `Maker`
(poet.values.schedule).

docs/baselines.md says where each comes from and how it differs. `on_demand` turns what a method
forgets into a schedule, `chain` cuts a graph into a row of segments, and `judging` has proposals
replayed and picks the cheapest that is valid.
"""

from poet.baselines.capuchin import capuchin
from poet.baselines.checkmate import checkmate
from poet.baselines.chen_greedy import chen_greedy
from poet.baselines.chen_sqrt import chen_sqrt
from poet.baselines.dtr import dtr
from poet.baselines.keep_all import keep_all
from poet.baselines.paging import paging
from poet.baselines.paging_greedy import paging_greedy
from poet.baselines.pofo import pofo
from poet.baselines.revolve import revolve
from poet.baselines.torch_budget import torch_budget
from poet.values.schedule import Maker

STARTS: dict[str, Maker] = {"keep-all": keep_all, "paging-greedy": paging_greedy}
"""Simple makers that answer at once; the planner may start from what they find."""

MORE_STARTS: dict[str, Maker] = {"dtr": dtr, "torch-budget": torch_budget, "chen-sqrt": chen_sqrt}
"""Makers that take seconds where a graph is large; the planner asks them in this order there."""

METHODS: dict[str, Maker] = {
    "keep-all": keep_all,
    "paging": paging,
    "chen-sqrt": chen_sqrt,
    "chen-greedy": chen_greedy,
    "revolve": revolve,
    "checkmate": checkmate,
    "dtr": dtr,
    "capuchin": capuchin,
    "pofo": pofo,
    "torch-budget": torch_budget,
    "paging-greedy": paging_greedy,
}
