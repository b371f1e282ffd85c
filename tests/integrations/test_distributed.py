"""DistributedDataParallel around wrapped models, in two processes, beside the same around plain."""

from pathlib import Path

from torch.multiprocessing.spawn import spawn

from tests.integrations.two_processes import follow_the_example


def test_two_processes_give_the_same_bits(tmp_path: Path) -> None:
    spawn(follow_the_example, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
