"""The page of a sweep in a real browser: it opens in silence, fits a phone, and hides methods."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from poet.planning.executor import Executor
from poet.planning.rows import found_row
from poet.sweeps.grid import read_grid
from poet.sweeps.page import page as written
from poet.sweeps.running import sweep
from tests.browser.conftest import Opened
from tests.browser.plans import HOSTILE
from tests.conftest import INSTANCES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SHOWN = "[...document.querySelectorAll('.small .line')].filter((g) => g.getClientRects().length)"
METHODS = ("poet", "keep-all", "chen-greedy")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    instance = (INSTANCES / "linear-m4.json").read_text()
    (folder / "plain.json").write_text(instance)
    (folder / "<b>hostile & co.json").write_text(instance)
    grid = folder / "grid.toml"
    grid.write_text(
        'models = ["plain.json", "<b>hostile & co.json"]\nbudgets = ["1KB", 4000, 6000, 8000]\n'
        f"methods = {list(METHODS)}\nwork_limit = 1\n"
    )
    found = sweep(read_grid(grid), folder / "out", lambda shared: Executor(found_row, shared))
    (folder / "index.html").write_text(written(found, HOSTILE))
    return folder / "index.html"


@pytest.fixture
def opened(browser: "Browser", file: Path, request: Any) -> Iterator[Opened]:
    width: int
    scheme: Any
    width, scheme = getattr(request, "param", (1280, "light"))
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page = Opened(context.new_page())
    page.page.goto(file.as_uri())
    yield page
    context.close()


@pytest.mark.parametrize("opened", [(1280, "light"), (1280, "dark"), (390, "light")], indirect=True)
def test_it_opens_in_silence_and_fits(opened: Opened) -> None:
    opened.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert opened.said == []
    assert len(opened.asked) == 1
    assert opened.run(OVERFLOW) <= 0
    assert opened.run("document.querySelectorAll('b, script[src], link, img').length") == len(
        [cell for cell in opened.run(CELLS) if "gap" in cell]
    )  # what is bold is POET's energy, and no name


CELLS = "[...document.querySelectorAll('details td')].map((cell) => cell.innerText)"


def test_every_cell_is_there(opened: Opened) -> None:
    opened.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    cells = opened.run(CELLS)
    assert len(cells) == 2 * 4 * (1 + len(METHODS))
    assert cells.count("infeasible") == 2 * len(METHODS)
    assert cells.count("none found") == 2 * 3  # keep-all below its peak, Chen's at 4,000 bytes
    assert len([cell for cell in cells if "gap" in cell]) == 2 * 3
    assert "<b>hostile & co.json" in opened.page.inner_text("main")


def test_a_method_is_hidden_by_keyboard(opened: Opened) -> None:
    before = opened.run(f"{SHOWN}.length")
    assert before == 2 * len(METHODS)
    box = opened.page.locator("#show-chen-greedy")
    box.focus()
    opened.page.keyboard.press("Space")
    assert opened.run(f"{SHOWN}.length") == before - 2
    opened.page.keyboard.press("Space")
    assert opened.run(f"{SHOWN}.length") == before


def test_it_follows_the_button(opened: Opened) -> None:
    dark = "getComputedStyle(document.documentElement).colorScheme"
    assert opened.run(dark) == "light"
    opened.page.click("#theme")
    assert opened.run(dark) == "dark"


def test_axe_finds_nothing(opened: Opened) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found = axe.Axe().run(opened.page).response["violations"]
    bad = [each for each in found if each["impact"] in ("serious", "critical")]
    assert bad == []
