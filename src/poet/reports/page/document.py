"""Document: HTML with everything inside, which opens anywhere and asks nobody.

A content security policy allows exactly the scripts that are in it, by their hashes, and no request
at all, so that even a name that slipped through as markup could do nothing.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib import resources

from poet.reports.page.markup import Markup, tag


def document(
    title: str, body: Markup, scripts: Sequence[str], data: Markup | None = None, style: str = ""
) -> str:
    """The whole file; `data` stands before the scripts, `style` after the page's own."""
    allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(own_file("report.css") + style)),
    )
    inner = tag(
        "body",
        tag("main", body),
        data,
        *(tag("script", Markup(script)) for script in scripts),
    )
    return f"<!doctype html>\n{tag('html', head, inner, lang='en')}\n"


def without_charts() -> list[str]:
    """The scripts of a page that has no charts to be drawn by any."""
    return [own_file("theme_only.js") + own_file("framed.js")]


def theme_button() -> Markup:
    """The button that those scripts know."""
    return tag("button", "Dark", type="button", id="theme", class_="quiet", hidden=True)


def own_file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()
