"""Compiling: a joint graph of forward and backward pass, planned within a budget for Inductor."""
