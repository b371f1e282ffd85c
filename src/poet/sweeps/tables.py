"""Tables: a row a cell, as CSV and, where pyarrow is installed, as Parquet."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import msgspec

from poet.errors import MissingPackage
from poet.sweeps.results import Cell, Results

TYPES: dict[str, str] = {
    # in the order of the columns; the types are Arrow's
    "model": "string",
    "device": "string",
    "budget": "string",
    "ram_bytes": "int64",
    "method": "string",
    "outcome": "string",
    "status": "string",
    "joules": "double",
    "of_keep_all": "double",
    "seconds": "double",
    "peak_bytes": "int64",
    "recomputed": "int64",
    "paged_bytes": "int64",
    "bound_joules": "double",
    "bound_source": "string",
    "gap": "double",
    "keep_all_joules": "double",
    "keep_all_bytes": "int64",
    "floor_bytes": "int64",
    "transfers": "string",
    "solve_seconds": "double",
    "first_seconds": "double",
    "poet_version": "string",
    "reason": "string",
}


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """A row for every cell."""
    for curve in results.curves:
        shared = {
            "model": curve.model,
            "device": curve.device or None,
            "keep_all_joules": curve.keep_all_joules,
            "keep_all_bytes": curve.keep_all_bytes,
        }
        places: list[tuple[str, int | None, Cell]] = [
            (p.budget, p.ram_bytes, cell) for p in curve.points for cell in p.cells
        ]
        places += [("", None, cell) for cell in curve.troubled]
        for budget, ram_bytes, cell in places:
            row = msgspec.structs.asdict(cell.row)
            joules, kept = cell.row.joules, curve.keep_all_joules
            known = {
                **row,
                **shared,
                "budget": budget or None,
                "ram_bytes": ram_bytes,
                "outcome": cell.outcome,
                "of_keep_all": None if joules is None or not kept else joules / kept,
                "poet_version": cell.version or None,
                "transfers": row["transfers"] or None,
                "reason": row["reason"] or None,
            }
            yield {column: known[column] for column in TYPES}


def as_csv(results: Results) -> str:
    lines = io.StringIO()
    table = csv.DictWriter(lines, list(TYPES), lineterminator="\n")
    table.writeheader()
    table.writerows(rows(results))
    return lines.getvalue()


def as_parquet(results: Results) -> bytes:
    """The same, with its types. Needs pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingPackage("a .parquet", "pyarrow") from None
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in TYPES.items()])
    content = io.BytesIO()
    table = pyarrow.Table.from_pylist(list(rows(results)), schema=schema)
    pyarrow.parquet.write_table(table, content)
    return content.getvalue()
