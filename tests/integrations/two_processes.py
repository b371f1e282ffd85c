"""What each of two processes does in test_distributed: train by plan and without, and compare.

A module of its own, which a new process can import by its name.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import poet
from tests.conftest import ROOT
from tests.integrations.same import check_same_weights


def follow_the_example(rank: int, folder: str) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(ROOT / "examples"))
    example: Any = importlib.import_module("distributed")

    losses, small = example.main(rank, Path(folder) / "example")
    assert 0 < small.peak_bytes <= small.budget_bytes
    dist.init_process_group("gloo", f"file://{folder}/plain", rank=rank, world_size=2)
    plain = example.network()
    assert example.train(plain, rank) == losses
    check_same_weights(small, plain)
    for options in (
        {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
    ):
        mine, theirs = example.network(), example.network()
        planned = poet.wrap(
            mine, example=(torch.zeros(4, 1, 16, 16),), ram="60%", store="pages", time_limit=0.2
        )
        assert accumulated(planned, rank, options) == accumulated(theirs, rank, options), options
        check_same_weights(planned, theirs)
        assert 0 < planned.peak_bytes <= (planned.budget_bytes or 0)
    dist.destroy_process_group()


def accumulated(model: nn.Module, rank: int, options: dict[str, Any]) -> list[float]:
    """Losses of two steps of two batches each, whose norms are clipped."""
    replica = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(rank)
    losses = []
    for number in range(4):
        images, labels = torch.randn(4, 1, 16, 16), torch.randint(0, 10, (4,))
        alone = number % 2 == 0 and "static_graph" not in options
        with replica.no_sync() if alone else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(replica(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        if not alone:
            losses.append(nn.utils.clip_grad_norm_(replica.parameters(), 0.1).item())
            optimizer.step()
            optimizer.zero_grad()
    return losses
