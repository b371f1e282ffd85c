"""Firmware: a plan as a folder of C that trains on a microcontroller.

    operands     calls           -> where in memory their arguments lie
    lifetimes    Plan            -> blocks of RAM, and when each is alive
    arena        blocks          -> addresses, and the proof that none overlap
    kernels      a call          -> C statements
    source       all of these    -> step.c and memory.h
    card         tensors, data   -> the image of the card, and back
    folder       all of it       -> files that `make` builds
    emulation    a folder        -> what happened on the emulated board

Needs the plan alone, never torch.
"""
