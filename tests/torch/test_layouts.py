"""Traces know how results lie in memory: as the kernels write them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import poet
from poet.tracer.shape_kernels import _KERNELS, shapes_known
from tests.torch.eager import differences

ATEN = torch.ops.aten
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "row-major": lambda: torch.rand(2, 4, 6, 6),
    "channels last": lambda: torch.rand(2, 4, 6, 6).contiguous(memory_format=torch.channels_last),
    "rows first": lambda: torch.rand(2, 6, 4, 6).transpose(1, 2),
    "columns first": lambda: torch.rand(2, 4, 6, 6).mT,
    "batch inside": lambda: torch.rand(4, 2, 6, 6).transpose(0, 1),
}


def calls(x: torch.Tensor, g: torch.Tensor) -> list[tuple[Any, tuple[Any, ...]]]:
    """Every operator whose layouts POET says; groups that PyTorch takes in two layouts alone."""
    one, four, row = torch.rand(()), [torch.rand(4) for _ in range(5)], torch.rand(6)
    norm, by_row = (x, *four[:4], True, 0.1, 1e-5), [torch.rand(2, 4, 6, 1) for _ in range(2)]
    made = [
        *((ATEN.mse_loss_backward.default, (g, x, g, n)) for n in (0,)),
        (ATEN.mse_loss_backward.default, (one, x, g, 1)),
        (ATEN.smooth_l1_loss_backward.default, (one, x, g, 1, 1.0)),
        (ATEN.huber_loss_backward.default, (one, x, g, 2, 1.0)),
        (ATEN.native_layer_norm_backward.default,
         (g, x, [6], *by_row, row, row, [True, False, True])),
        (ATEN._log_softmax_backward_data.default, (g, x, 1, torch.float32)),
        (ATEN.log_sigmoid_forward.default, (x,)),
        (ATEN.channel_shuffle.default, (x, 2)),
        (ATEN.roll.default, (x, [1], [1])),
        (ATEN._native_batch_norm_legit.default, norm),
        (ATEN._native_batch_norm_legit.no_stats, (x, *four[:2], True, 0.1, 1e-5)),
        (ATEN._native_batch_norm_legit_functional.default, norm),
        (ATEN._native_batch_norm_legit_no_training.default, (x, *four[:4], 0.1, 1e-5)),
        *((ATEN.native_batch_norm_backward.default,
           (g, x, *four, True, 1e-5, [wanted, True, True])) for wanted in (True, False)),
        (ATEN.hardswish_backward.default, (g, x)),
        (ATEN.hardsigmoid_backward.default, (g, x)),
        (ATEN.hardtanh_backward.default, (g, x, 0.2, 0.7)),
        (ATEN.elu_backward.default, (g, 1.0, 1.0, 1.0, False, x)),
        (ATEN.softplus_backward.default, (g, x, 1.0, 20.0)),
    ]  # fmt: skip
    if any(
        x.is_contiguous(memory_format=f) for f in (torch.contiguous_format, torch.channels_last)
    ):
        stats = torch.rand(2, 2), torch.rand(2, 2)
        more = (x, x, *stats, four[0], 2, 4, 36, 2, [True, True, True])
        made.append((ATEN.native_group_norm_backward.default, more))
    return made


@pytest.mark.parametrize("of_x", LAYOUTS)
@pytest.mark.parametrize("of_g", ["row-major", "batch inside"])
def test_results_lie_as_kernels_write_them(of_x: str, of_g: str) -> None:
    found = set()
    for target, arguments in calls(LAYOUTS[of_x](), LAYOUTS[of_g]()):
        real = target(*arguments)
        with shapes_known(), FakeTensorMode() as mode:
            known = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
            traced = target(*known)
        lies = [
            [None if a is None else (a.shape, a.stride(), a.dtype) for a in each]
            for each in (x if isinstance(x, tuple) else (x,) for x in (real, traced))
        ]
        assert lies[0] == lies[1], target
        found.add(target)
    if of_x == "row-major":
        assert found == set(_KERNELS) - {ATEN._grouped_mm.default}


class Turned(nn.Module):
    """Gradients of tensors that are not row-major, which are then viewed as others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 6)
        self.norm, self.images, self.head = nn.LayerNorm(6), nn.BatchNorm1d(5), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.first(self.images(x)).transpose(0, 1))
        x = self.norm(self.second(x).transpose(0, 1))
        made = self.head(F.elu(x).transpose(0, 1)).transpose(0, 1)
        return F.huber_loss(made, y) + F.mse_loss(made, y) + F.smooth_l1_loss(made, y)


def test_a_step_of_turned_tensors_is_eagers() -> None:
    torch.manual_seed(0)
    batch = torch.randn(4, 5, 3), torch.randn(4, 5, 2)
    assert not differences(Turned(), batch, None, poet.SGD(lr=0.1))
