"""A real browser, Chromium driven by playwright. Missing tools skip; under CI they fail."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from poet import Plan

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
Open = Callable[..., "Opened"]


class Opened:
    """A page, with what it said and what it asked for."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what}; the tests of pages need it")
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Started anew for each module: while playwright runs, its event loop is this thread's, and
    other tests have loops of their own."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed (pip install playwright)")
    if not CHROMIUM.exists():
        _missing(f"{CHROMIUM} is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_plan(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Write a plan's page and open it at a width, in a colour scheme."""
    from poet.reports.page.page import page as written
    from poet.reports.page.view import look_at

    contexts = []

    def show(plan: Plan, width: int = 1280, scheme: Any = "light") -> Opened:
        file = tmp_path_factory.mktemp("page") / "report.html"
        file.write_text(written(look_at(plan)))
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.goto(file.as_uri())
        if plan.schedule:
            opened.page.wait_for_selector("#map .barlayer")
        return opened

    yield show
    for context in contexts:
        context.close()
