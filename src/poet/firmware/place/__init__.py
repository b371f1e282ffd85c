"""Plan -> addresses: `lifetimes` says what is alive when, `arena` where it lies."""
