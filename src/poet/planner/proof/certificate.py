"""Certificates: bounds recomputed from dual values, in arithmetic that cannot flatter.

Weak duality: for any multipliers y of the rows (of the right sign), no x in the box costs less than

    Σ_r min { y_r·s : row_low_r ≤ s ≤ row_high_r }  +  Σ_j min { d_j·x : low_j ≤ x ≤ high_j }
    with d = c − Aᵀy.

So any vector of dual values, from any solver, exact or not, gives a bound that holds; a better one
gives a better bound. Rounding errors of the sums are bounded and taken off.
"""

import numpy as np

from poet.planner.model.matrix import Floats, Milp


def safe_bound(
    milp: Milp, duals: Floats, low: Floats | None = None, high: Floats | None = None
) -> float:
    """A number that no feasible x undercuts, from any multipliers; within other bounds if given."""
    low = milp.low if low is None else low
    high = milp.high if high is None else high
    y = np.where(np.isfinite(duals), duals, 0.0)
    y = np.where((y > 0) & np.isinf(milp.row_low), 0.0, y)
    y = np.where((y < 0) & np.isinf(milp.row_high), 0.0, y)
    reduced, slack = reduced_costs(milp, y)
    rows = y * np.where(y > 0, milp.row_low, np.where(y < 0, milp.row_high, 0.0))
    lowest, highest = reduced - slack, reduced + slack
    box = np.minimum(
        np.minimum(lowest * low, highest * low),
        np.minimum(lowest * high, highest * high),
    )
    terms = np.concatenate((rows, box))
    error = np.abs(terms).sum() * terms.size * np.finfo(np.float64).eps
    return float(terms.sum() - error)


def ray_bound(
    milp: Milp,
    duals: Floats,
    ray: Floats,
    low: Floats | None = None,
    high: Floats | None = None,
) -> float:
    """The best bound along a dual ray: for an infeasible program it grows without end."""
    stretches = [sign * 10.0**power for sign in (1.0, -1.0) for power in range(7)]
    return max(safe_bound(milp, duals + s * ray, low, high) for s in (0.0, *stretches))


def reduced_costs(milp: Milp, y: Floats) -> tuple[Floats, Floats]:
    """c − Aᵀy, and how far rounding may have moved each."""
    transposed = milp.matrix.T
    reduced = milp.cost - transposed @ y
    terms = np.diff(milp.matrix.tocsc().indptr) + 2
    size = np.abs(milp.cost) + abs(transposed) @ np.abs(y)
    return reduced, size * terms * np.finfo(np.float64).eps
