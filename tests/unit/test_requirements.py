"""What POET tells people to install is what it is made for."""

import tomllib

from poet.errors import REQUIREMENTS, MissingPackage
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_messages_ask_for_the_versions_of_the_project() -> None:
    extras = {each for extra in PROJECT["optional-dependencies"].values() for each in extra}
    assert set(REQUIREMENTS.values()) <= extras
    assert all(text.startswith(f"{name}>=") for name, text in REQUIREMENTS.items())


def test_a_missing_package_comes_with_a_way_out() -> None:
    assert str(MissingPackage("the solver gurobi", "gurobipy", "use --solver highs")) == (
        "the solver gurobi needs gurobipy, which is not installed: "
        "pip install 'gurobipy>=11,<14', or use --solver highs"
    )


def test_nobody_is_sent_to_the_other_poet() -> None:
    """`pip install poet`, with extras or without, would install somebody else's package."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for file in (*pages, *(ROOT / "src").rglob("*.py")):
        text = file.read_text()
        assert "poet[" not in text, file
        assert "install poet" not in text, file
    assert PROJECT["name"] == "poet-training"
