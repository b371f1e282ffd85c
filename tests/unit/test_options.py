"""Python's messages name arguments; the command line says them as options."""

import pytest

from poet.cli.exit_codes import INFEASIBLE, NOTHING_FOUND, WRONG_USAGE, of_error
from poet.cli.options import as_options
from poet.errors import Infeasible, OutOfBudget, PageError, PoetError


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("others can reach it: it takes a token=", "others can reach it: it takes a --token"),
        ('Try ram="256 KiB".', "Try --ram 256KiB."),
        ("a larger ram=, a later deadline= or a longer time_limit=.",
         "a larger --ram, a later --deadline or a longer --time-limit."),
        ("overwrite: force=True", "overwrite: --force"),
        ('give a device, such as device="rpi4" (see', "give a device, such as --device rpi4 (see"),
        ('give a folder, store="pages/"', "give a folder, --store pages/"),
        ("poet.SGD(lr=0.01) has ram=3 in it", "poet.SGD(lr=0.01) has ram=3 in it"),
        ("deram=, ram, param=True", "deram=, ram, param=True"),
        ("cannot write runs/force=True/x", "cannot write runs/force=True/x"),
        ('store="my pages/"', "--store 'my pages/'"),
    ],
)  # fmt: skip
def test_arguments_become_options(python: str, command: str) -> None:
    assert as_options(python) == command


def test_exit_codes_of_errors() -> None:
    assert of_error(PoetError("")) == WRONG_USAGE == 2
    assert of_error(Infeasible("")) == INFEASIBLE == 3
    assert of_error(Infeasible("", proven=False)) == NOTHING_FOUND == 4
    for kind in (OutOfBudget, PageError):
        assert issubclass(kind, PoetError)
        assert of_error(kind("")) == WRONG_USAGE
