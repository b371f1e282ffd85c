"""Plans run for real: steps in PyTorch, with pages in a store."""
