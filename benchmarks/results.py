"""RESULTS.md: one section a benchmark, each with its date; a benchmark that runs alone replaces its own section."""

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """# Results of `make bench`

Ratios matter, seconds are this machine's; what is compared ran in turns, in one run. A part is repeated with
`python -m benchmarks.run NAME`.
"""


def keep(title: str, name: str, body: str, path: Path = RESULTS) -> None:
    """Put a section in its place, or at the end, dated and with what it ran on."""
    packages = ", ".join(f"{each} {version(each)}" for each in ("msgspec", "numpy", "pyarrow"))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    dated = (
        f"`{name}`: {today}, Python {platform.python_version()}, {packages}, {os.cpu_count()} shared cores.\n\n"
        f"{body.strip()}\n"
    )
    sections = read(path)
    sections[title] = dated
    text = "\n".join([HEAD, *(f"## {each}\n\n{sections[each]}" for each in sections)])
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> dict[str, str]:
    """Return each section's text by its title, in order."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    _, *parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {title: body.strip() + "\n" for title, body in zip(parts[::2], parts[1::2], strict=True)}
