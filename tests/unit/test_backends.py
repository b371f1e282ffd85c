"""The solver behind its protocol, on programs whose answer is known."""

import numpy as np
import pytest
from scipy import sparse

from poet.planner.backends import Limits, find_backend
from poet.planner.model.matrix import Milp


def test_a_whole_number_beside_a_cheaper_fraction() -> None:
    """HiGHS 1.14 says 15 here, and calls it optimal: min 2x + 3z, x + z ≥ 4.5, z whole."""
    program = Milp(
        cost=np.array([2.0, 3.0]),
        low=np.zeros(2),
        high=np.full(2, 10.0),
        integer=np.array([False, True]),
        matrix=sparse.csr_matrix([[1.0, 1.0]]),
        row_low=np.array([4.5]),
        row_high=np.array([np.inf]),
        row_ids=np.array([0]),
    )
    answer = find_backend("highs").solve_integer(program, Limits(seconds=10.0))
    assert answer.status == "optimal"
    assert answer.objective == pytest.approx(9.0)
