"""Cards with something else on them, sealed as if it had been written there."""

from pathlib import Path

import numpy as np

from poet.firmware.card.sectors import HELD, SECTOR, held, sealed


def overwrite(card: Path, address: int, content: bytes, stamp: int = 0) -> None:
    """These bytes from an address on; `stamp` is the step that their sectors are of."""
    image = bytearray(card.read_bytes())
    first, beyond = address // HELD, -(-(address + len(content)) // HELD)
    whole = bytearray(
        held(
            np.frombuffer(bytes(image), np.uint8), first * HELD, (beyond - first) * HELD, stamp, ""
        )
    )
    at = address - first * HELD
    whole[at : at + len(content)] = content
    image[first * SECTOR : beyond * SECTOR] = sealed(bytes(whole), first, stamp)
    card.write_bytes(image)
