"""What an op's calls mean, for costs, runtime and firmware alike. In the order of reading:

    references   the tensors and inner values that a call names, and whose memory those lie in
    sizes        shapes, elements and bytes of what a call reads and makes: enough to count its work
    operands     where in memory each element of it lies: enough to do its work
    shapes/      what the results of a call must be, for whoever does its work without PyTorch
    updates      the calls that update parameters, whose arithmetic is POET's own
    loops        which calls can go through a parameter in tiles, and how
    workspace    the memory an op needs while its calls run

`sizes` asks little and takes every graph that PyTorch can run; `operands` follows views, offset by
offset, and refuses those that it cannot follow.
"""
