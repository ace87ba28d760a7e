"""Print the page of a finding or of a recommendation: what it means, how it is found, what to do.

examples:
  overlapscope explain straggler
  overlapscope explain bucket_cap low_bandwidth
"""

import argparse
import json
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import overlapscope
from overlapscope.cli.output import printable
from overlapscope.errors import UsageError

FOLDERS: Final = ("findings", "advice")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `explain`."""
    parser.add_argument("ids", nargs="+", metavar="ID", help="id of a finding or of a recommendation")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the pages."""
    known = pages()
    found = []
    for each in args.ids:
        kind = each.split(":", 1)[0]
        if kind not in known:
            near = get_close_matches(kind, known, 3, 0.5) or sorted(known)
            raise UsageError(f"{kind[:80]!r} is no finding and no recommendation; is it one of {', '.join(near)}?")
        found.append({"id": kind, "text": known[kind].read_text(encoding="utf-8")})
    if args.json:
        print(json.dumps({"schema": "overlapscope.pages/1", "pages": found}, indent=2))
    else:
        print(printable("\n".join(each["text"] for each in found)), end="")
    return 0


def pages() -> dict[str, Path]:
    """Return the page of each id: in an installed package `pages` in it, in the repository `docs` beside it."""
    here = Path(overlapscope.__file__).parent
    inside = here / "pages" if (here / "pages").is_dir() else here.parent / "docs"
    return {file.stem: file for folder in FOLDERS for file in (inside / folder).glob("[a-z]*.md")}
