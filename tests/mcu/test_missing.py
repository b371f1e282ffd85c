"""What has no kernel is said when it is planned, all of it, and refused when it is written."""

from pathlib import Path

import pytest
import torch
from torch import nn

import poet
from poet.errors import PoetError
from poet.firmware.missing import missing_kernels
from poet.tracer.by_name import capture_named
from tests.conftest import Poet

from .conftest import NETS, ROOT, Emitter

RARE = """
import torch
from torch import nn

class Rare(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = torch.lgamma(self.first(x) ** 2 + 1)
        return torch.erfinv(torch.tanh(self.second(x))).sum() + torch.cumsum(x, 1).mean()

def rare():
    return Rare(), (torch.randn(2, 4),), None
"""


def test_a_plan_says_all_of_it_and_emit_refuses(poet_command: Poet, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(RARE)
    plan = tmp_path / "plan.json"
    ask = (f"{tmp_path}/nets.py:rare", "--work-limit", "5", "--threads", "1")
    done = poet_command("plan", *ask, "--device", "nrf52840", "-o", plan)
    assert done.code == 0, done.err
    named = ("aten.lgamma of ", "aten.erfinv of ", "aten.cumsum of ", "aten.digamma of ")
    for text in ("note: the plan will not become C", *named, ", forward)", ", backward)"):
        assert text in done.err, text
    done = poet_command("emit", plan, "-o", tmp_path / "firmware")
    assert done.code == 2
    for text in ("C cannot be written", *named):
        assert text in done.err, text
    assert not (tmp_path / "firmware").exists()
    done = poet_command("plan", *ask, "--device", "rpi4")  # PyTorch runs there
    assert done.code == 0
    assert "become C" not in done.err


@pytest.mark.parametrize("name", ["mixed", "masked", "rules", "planes", "separable"])
def test_nothing_is_missing_that_is_there(name: str) -> None:
    graph = capture_named(f"{ROOT}/{NETS}:{name}", poet.SGD()).graph
    assert missing_kernels(graph) == []


def test_a_layout_without_a_kernel_is_missing(emitted: Emitter) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.max_pool2d(self.table(x).transpose(2, 3), 2).sum()

    program = poet.capture(Turned(), None, poet.SGD(), example=(torch.randn(1, 2, 4, 3),))
    (missing,) = [x for x in missing_kernels(program.graph) if x.kind.endswith("indices")]
    assert "row-major" in missing.why
    with pytest.raises(PoetError, match=r"there is no kernel for .*\n.*max_pool2d"):
        emitted(poet.plan(program, device="nrf52840", work_limit=5))
