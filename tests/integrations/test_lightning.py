"""Lightning's Trainer with PoetCallback, beside itself without."""

from pathlib import Path
from typing import Any

import pytest

import poet
from tests.integrations.same import Load, check_same_weights

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def test_fit_gives_the_same_bits_and_resumes(example: Load, tmp_path: Path) -> None:
    script = example("lightning_digits")
    plain = script.fit("plain", [])
    module, budget = script.main()
    assert len(module.losses) == 2 + 2 * (6 + 2)  # two validations before the first step
    assert module.losses == plain.losses
    check_same_weights(module, plain)
    assert 0 < budget.peak_bytes <= budget.budget_bytes
    assert type(module.net) is type(plain.net)
    assert list(tmp_path.glob("pages/*")) == []

    script.fit("half", [], epochs=1)
    (checkpoint,) = tmp_path.glob("half/*.ckpt")
    again = type(budget)(ram="60%", store=poet.MemoryStore(), time_limit=0.3)
    resumed = script.fit("rest", [again], checkpoint=checkpoint)
    # Lightning keeps no random state, so that dropout goes on otherwise than without a stop.
    check_same_weights(resumed, script.fit("plain rest", [], checkpoint=checkpoint))
    assert 0 < again.peak_bytes <= again.budget_bytes


def test_which_network_is_meant_must_be_clear(
    example: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = example("lightning_digits")
    from poet.integrations.lightning import PoetCallback

    networks = script.network

    def two(module: Any) -> None:
        module.__class__.__base__.__init__(module)
        module.net, module.other, module.losses = networks(), networks(), []

    monkeypatch.setattr(script.Digits, "__init__", two)
    with pytest.raises(poet.PoetError, match=r"has 'net', 'other'; name it"):
        script.fit("run", [PoetCallback(ram="60%")])
    with pytest.raises(
        poet.PoetError, match=r"part='nett' is no module of Digits, which has 'net'"
    ):
        script.fit("run", [PoetCallback("nett", ram="60%")])
    with pytest.raises(poet.PoetError, match="without a call of part='other', so that no budget"):
        script.fit("run", [PoetCallback("other", ram="60%")])
