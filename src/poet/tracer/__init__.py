"""PyTorch training step -> Graph and Program: what is computed, and how to call each op."""
