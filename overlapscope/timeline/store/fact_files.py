"""Read and write the facts of a job as a folder: one file per table that is not empty."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overlapscope.timeline.columns import size
from overlapscope.timeline.facts import FACT_TABLES, Facts
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.store.arrow_tables import from_arrow, read_parquet, to_arrow, write_parquet
from overlapscope.timeline.store.lazy_rank import UNREADABLE, first_line
from overlapscope.timeline.store.run_directory import FACTS


def save_facts(facts: Facts, folder: Path) -> None:
    """Write the tables that are not empty, into a folder that is made for them."""
    for name in FACT_TABLES:
        table = getattr(facts, name)
        if size(table):
            folder.mkdir(exist_ok=True)
            write_parquet(to_arrow(table, facts.names), folder / f"{name}.parquet")


def load_facts(folder: Path, known: Sequence[str] = ()) -> tuple[Facts, list[str]]:
    """Return the stored facts, and why some cannot be read; names in `known` keep their codes."""
    names = NameTable(known)
    tables: dict[str, Any] = {}
    problems = []
    if os.path.lexists(folder) and not folder.is_dir():
        problems.append(f"{FACTS} left out: it is not a folder")
    for name, kind in FACT_TABLES.items():
        file = folder / f"{name}.parquet"
        if os.path.lexists(file):  # also a broken link, which reading reports
            try:
                tables[name] = from_arrow(read_parquet(file), kind, names)
            except UNREADABLE as error:
                problems.append(f"{FACTS}/{name} left out: it cannot be read ({first_line(error)})")
    return Facts(names=tuple(names.to_list()), **tables), problems


def table_rows(facts: Facts) -> dict[str, int]:
    """Return the number of rows of each table that is not empty."""
    return {name: rows for name in FACT_TABLES if (rows := size(getattr(facts, name)))}


def missing_facts(facts: Facts, expected: Mapping[str, int]) -> list[str]:
    """Return a message for each table whose number of rows is not the expected one."""
    there = table_rows(facts)
    return [
        f"{FACTS}/{name} has {there.get(name, 0)} rows, and was written with {rows}"
        for name, rows in expected.items()
        if there.get(name, 0) != rows
    ]
