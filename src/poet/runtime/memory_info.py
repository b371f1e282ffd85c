"""What the system says of its memory."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def memory_info() -> dict[str, int]:
    """Bytes by name, such as `MemAvailable`; nothing where the system has no such file."""
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: int(rest.split()[0]) * 1024 for name, rest in pairs}
