"""The reference: the steps that a new card asks for, as PyTorch takes them.

A plan is a file, and its operators run here: only those that POET knows, on tensors of the sizes
that were checked, in a process of their own (`reference_steps`) with so much memory and time and no
more. It ends with the call, however that ends, and with this process, should that be killed.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from poet.errors import PoetError
from poet.firmware.write.folder import read_folder
from poet.runtime.memory_info import memory_info
from poet.values.graph import Graph

SECONDS = 1800.0
"""The most that the steps may take."""
_BESIDE_BYTES = 2**30
_COPIES = 6
"""Doubles, the tensors that a step begins with, and what kernels take for themselves."""


def write_reference(folder: Path) -> None:
    """The file `reference.safetensors` of a folder whose card is new."""
    made, plan = read_folder(folder)
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    command = [sys.executable, "-P", "-m", "poet.firmware.reference_steps", str(folder)]
    command += [str(_most_bytes(plan.graph))]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(  # the pipe to it stays open: its end is that of this process
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said,
            env=os.environ | {"PYTHONPATH": path},
        ) as running,
    ):  # fmt: skip
        try:
            code = running.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise PoetError(
                f"PyTorch had not taken {made.steps} steps of {plan.graph.name} after "
                f"{SECONDS:g} s; the reference cannot be made. Try fewer steps"
            ) from None
        finally:
            running.kill()
        if code != 0:
            said.seek(0)
            raise PoetError(_why(code, said.read().decode(errors="replace"), plan.graph))


def _most_bytes(graph: Graph) -> int:
    """What the steps may take beside Python and PyTorch themselves."""
    inside = max(sum(value.nbytes for value in op.values) for op in graph.ops)
    total = sum(tensor.nbytes for tensor in graph.tensors) + inside
    most = _BESIDE_BYTES + _COPIES * total
    return min(most, memory_info().get("MemAvailable", most))


def _why(code: int, said: str, graph: Graph) -> str:
    lines = said.strip().splitlines()
    if code == 2 and lines:
        return lines[-1]
    how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    last = f": {lines[-1][:400]}" if lines else ""
    return f"PyTorch ended with {how} in the steps of {graph.name}{last}"
