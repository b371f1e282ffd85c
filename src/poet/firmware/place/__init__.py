"""Plan -> addresses: what is alive when, and where it lies."""
