"""Grids of plans: models × devices × budgets × methods, on this machine or a Ray cluster."""
