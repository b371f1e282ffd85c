"""Integrations: byte budgets in the loops of other libraries, a short file each."""
