"""What POET says when it cannot go on.

Every error that a person can cause is a `PoetError`: one message that names the thing, the value
and a way out. The command line prints the message and leaves with `exit_code`. Anything else that
escapes is a bug.
"""


class PoetError(Exception):
    """Wrong usage or bad input. The message is for people."""

    exit_code = 2


class PoetWarning(UserWarning):
    """Something a person should know, which does not stand in the way."""
