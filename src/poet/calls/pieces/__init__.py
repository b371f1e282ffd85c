"""Pieces: how calls are done block by block, with operands in the store instead of in RAM."""
