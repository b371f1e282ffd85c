"""What POET says when it cannot go on.

Every error that a person can cause is a `PoetError`: one message that names the thing, the value
and a way out, in the words of Python (`ram="2 GiB"`; the command line turns them into options).
Anything else that escapes is a bug.
"""

REQUIREMENTS = {
    "fastapi": "fastapi>=0.115,<1",
    "gurobipy": "gurobipy>=11,<14",
    "lightning": "lightning>=2.5,<3",
    "matplotlib": "matplotlib>=3.9,<4",
    "plotly": "plotly>=6,<7",
    "pyarrow": "pyarrow>=18,<27",
    "ray": "ray>=2.40,<3",
    "torch": "torch>=2.11,<2.14",
    "transformers": "transformers>=5,<6",
    "uvicorn": "uvicorn>=0.34,<1",
}
"""What pip has to be told for a package that is missing, as pyproject.toml has it."""


class PoetError(Exception):
    """Wrong usage or bad input. The message is for people."""


class Infeasible(PoetError):
    """No schedule keeps to the budget, or, unless `proven`, none was found in the time given."""

    def __init__(self, message: str, proven: bool = True) -> None:
        super().__init__(message)
        self.proven = proven


class AnotherWay(PoetError):
    """A batch by whose values the model would do something else than what was captured."""


class OutOfBudget(PoetError):
    """An op would take RAM beyond the budget, and did not run; or made more than was planned."""


class PageError(PoetError):
    """A page that could not be moved, or did not come back as it was."""


class MissingPackage(PoetError):
    """A package that POET can do without was asked for; the message says how to get it."""

    def __init__(self, who: str, package: str, instead: str = "") -> None:
        way_out = f"pip install '{REQUIREMENTS[package]}'" + (instead and f", or {instead}")
        super().__init__(f"{who} needs {package}, which is not installed: {way_out}")


class PoetWarning(UserWarning):
    """Something a person should know, which does not stand in the way."""
