"""The search for the largest batch, on steps whose need is known."""

from random import Random
from typing import Any, cast

from poet.planning.batches import MOST_BATCH, _largest
from poet.planning.problem import Problem


def test_the_largest_batch_is_found_in_few_captures() -> None:
    """Need grows along a line, a bent line, or in steps."""
    for seed in range(300):
        rng = Random(seed)
        base, each, step = rng.randint(0, 10**9), rng.randint(1, 10**7), rng.choice((1, 8))
        bend, ram = rng.randint(1, 2000), rng.randint(1, 2 * 10**10)
        tried: list[int] = []

        def need(batch: int) -> int:
            whole = -(-batch // step) * step  # noqa: B023
            return base + each * whole + each * max(0, whole - bend)  # noqa: B023

        def at(batch: int) -> Problem:
            tried.append(batch)  # noqa: B023
            return cast(Problem, batch)

        found = _largest(at, lambda size: (need(cast(Any, size)), "resident"), 4, ram)
        assert need(found.batch) <= ram or found.batch == 0
        if found.at_most is not None:
            assert need(found.at_most) > ram
            assert found.at_most in tried
        assert len(tried) == len(set(tried)) <= 10
        if step == 1 and found.at_most != found.batch + 1:
            assert found.batch >= MOST_BATCH


def test_a_step_that_is_never_known_to_fit() -> None:
    assert _largest(lambda n: cast(Any, n), lambda _: None, 16, 10**6).batch == 0
