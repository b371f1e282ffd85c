"""DistributedDataParallel: two processes train one network, each within a byte budget."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from digits import digits, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import poet


def train(model, rank):
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    losses = []
    for images, labels in zip(*(each.split(8) for each in digits(80).tensors), strict=True):
        mine = slice(rank, None, 2)
        loss = nn.functional.cross_entropy(replica(images[mine]), labels[mine])
        loss.backward()  # averages the gradients of both processes
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(rank, meeting):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    example = torch.zeros(4, 1, 16, 16)
    small = poet.wrap(network(), example=(example,), ram="60%", store="pages", time_limit=1)
    losses = train(small, rank)
    print(f"process {rank}: {small.peak_bytes:,} of {small.budget_bytes:,} bytes")
    dist.destroy_process_group()
    return losses, small


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (Path(folder) / "meeting",), nprocs=2)
