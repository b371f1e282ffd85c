"""Firmware: a plan as a folder of C that trains on a microcontroller. In the order of reading:

    emit         poet.emit: joins all of these to the planner, the zoo and PyTorch
    place/       Plan            -> blocks of RAM, when each is alive, and their addresses
    card/        tensors, data   -> the image of the card, and back
    boards/      the boards, one folder each
    write/       all of these    -> C source, and the folder that `make` builds
    packages/    a folder        -> the same as a package for Arduino, Zephyr, …
    c/           the kernels, and the loop that takes steps
    emulate/     a folder        -> what happened on the emulated board, beside PyTorch
    reference    the same steps by PyTorch, in a process of their own (`reference_steps`)

All but `emit` and `reference` need the plan alone; `reference_steps` alone needs torch.
"""
