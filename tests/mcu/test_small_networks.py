"""Some networks of `python -m benchmarks firmware-fifty`, the cheapest that have much in them.

Norms of groups, LSTM cells, U-Net, places that data names.
"""

import pytest
from benchmarks.small_networks import ENTRIES
from benchmarks.small_networks.trial import tried

NETWORKS = {network.name: network for network in ENTRIES}


@pytest.mark.usefixtures("board_tools")
@pytest.mark.parametrize(
    "name", ["heartbeat-resnet", "gait-bilstm", "cells-unet", "lidar-pointnet", "valve-dqn"]
)
def test_networks_train_as_in_pytorch(name: str) -> None:
    found = tried(NETWORKS[name])
    assert found.verdict == "trained", found.why
    assert found.first_loss != found.last_loss
    assert 0 < found.worst_ratio <= 10


def test_there_are_more_than_fifty() -> None:
    assert len(NETWORKS) == len(ENTRIES) > 50
    assert len({network.task for network in ENTRIES}) == len(ENTRIES)
    optimizers = {network.optimizer.partition("?")[0] for network in ENTRIES}
    assert optimizers == {"sgd", "adam", "adamw"}
