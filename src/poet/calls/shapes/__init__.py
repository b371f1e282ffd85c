"""Shapes: what a call's results must be, from what it is given.

A graph says of each tensor how large it is, and a file may say anything. Whoever does a call's work
without PyTorch, which would look for itself, asks here first: that operands lie inside the memory
they name, that arguments go together, and that results have the shape and the type that follow. A
kind without a rule is refused.

    given        what a rule is given, and what most rules ask
    elements     rules for what treats elements, sums and pieces of tensors
    images       ... convolutions, pools and norms of images
    rows         ... products, rows, losses, attention, tables, updates
    check        the rules by kind, and the check that asks them
"""
