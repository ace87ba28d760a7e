"""What `make test-long` and `make mutants` found, kept in LONG.md and MUTANTS.md: a dated section for each part."""

import datetime
import os
import platform
from pathlib import Path

FILE = Path(__file__).parents[1] / "LONG.md"
TITLE = "Last results of `make test-long`"


def keep(title: str, text: str, file: Path = FILE, of_file: str = TITLE) -> None:
    """Put a section in place of the one of that title, or at the end; the others stay as they are."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    section = f"## {title}\n\n{today}, Python {platform.python_version()}, {os.cpu_count()} cores.\n\n{text.strip()}\n"
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    sections = {each.partition("\n")[0]: f"## {each.strip()}\n" for each in f"\n{old}".split("\n## ")[1:]}
    file.write_text("\n".join([f"# {of_file}\n", *(sections | {title: section}).values()]), encoding="utf-8")
