"""What POET says when it cannot go on.

Every error that a person can cause is a `PoetError`: one message that names the thing, the value
and a way out. The command line prints the message and leaves with `exit_code`. Anything else that
escapes is a bug.
"""

REQUIREMENTS = {
    "gurobipy": "gurobipy>=11,<14",
    "matplotlib": "matplotlib>=3.9,<4",
    "plotly": "plotly>=6,<7",
    "torch": "torch>=2.11,<2.14",
    "transformers": "transformers>=5,<6",
}
"""What pip has to be told for a package that is missing, as pyproject.toml has it."""


class PoetError(Exception):
    """Wrong usage or bad input. The message is for people."""

    exit_code = 2


class MissingPackage(PoetError):
    """A package that POET can do without was asked for; the message says how to get it."""

    def __init__(self, who: str, package: str, instead: str = "") -> None:
        way_out = f"pip install '{REQUIREMENTS[package]}'" + (instead and f", or {instead}")
        super().__init__(f"{who} needs {package}, which is not installed: {way_out}")


class PoetWarning(UserWarning):
    """Something a person should know, which does not stand in the way."""
