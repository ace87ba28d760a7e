"""Print the page of a finding or of a recommendation, or what a moment of a run waited for.

Of a run without a moment it names the longest times without compute, as commands to type.

examples:
  overlapscope explain straggler
  overlapscope explain runs/baseline
  overlapscope explain bucket_cap low_bandwidth
  overlapscope explain runs/baseline --at 3:412.5
  overlapscope explain traces/ --span 0:1024 --json
"""

import argparse
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import overlapscope
from overlapscope.cli.arguments import add_reading, warn
from overlapscope.cli.output import escaped, printable
from overlapscope.display import display_path, shell_words
from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.store.run_folder import explain_missing

FOLDERS: Final = {"findings": "finding", "advice": "recommendation"}
MOST_LINKS: Final = 10_000
_AT: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,12}(?:\.[0-9]{1,9})?)")
_LINK: Final = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
_SPAN: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,12})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `explain`."""
    parser.add_argument(
        "given", nargs="+", metavar="ID|INPUT",
        help="ids of findings or recommendations; or a run directory, or traces: their longest losses, or --at, --span",
    )  # fmt: skip
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--at", metavar="RANK:MS", help="explain this time of a rank, in ms after the run's first span")
    asked.add_argument(
        "--span",
        metavar="RANK:SPAN",
        help="explain the begin of a span; SPAN is its row in the table of the rank's spans",
    )
    parser.add_argument(
        "--links", type=int, default=60, metavar="N",
        help="at most so many links; work that follows on one stream is one (default 60)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_reading(parser)


def run(args: argparse.Namespace) -> int:
    """Print the pages, or the chain."""
    if args.at is not None or args.span is not None:
        return _explain(args)
    known = pages()
    if not any(each.split(":", 1)[0] in known for each in args.given) and all(map(_exists, args.given)):
        return _list_moments(args)
    found = []
    for each in args.given:
        kind = each.split(":", 1)[0]
        if kind not in known:
            raise _unknown(each, kind, known)
        found += [{"id": kind, "of": of, "text": page.read_text(encoding="utf-8")} for of, page in known[kind].items()]
    if args.json:
        print(json.dumps({"schema": "overlapscope.pages/1", "pages": found}, indent=2))
    else:
        print(printable("\n".join(_in_terminal(each["text"], known) for each in found)), end="")
    return 0


def _unknown(given: str, kind: str, known: Mapping[str, object]) -> UsageError | InputError:
    """Return the error for what is neither the id of a page nor a path that can be explained beside ids."""
    near = get_close_matches(kind, known, 3)
    path = Path(given)
    if not near and (path.suffix or len(path.parts) > 1) and not _exists(given):
        return InputError(f"{display_path(path)}: {explain_missing(path)}")
    among = f"is it one of {', '.join(near)}?" if near else "analyze and advise print ids"
    there = "explain a run alone, without ids" if _exists(given) else "no file or folder has this name either"
    return UsageError(f"{kind[:80]!r} is no finding and no recommendation; {among}; {there}")


def _exists(given: str) -> bool:
    try:
        return bool(given) and Path(given).exists()
    except OSError:  # a name that is too long, for one
        return False


def _in_terminal(text: str, known: Mapping[str, object]) -> str:
    """Return a page whose links to other pages are commands; other links keep their text alone."""

    def shown(link: re.Match[str]) -> str:
        words, target = link.groups()
        page = Path(target.partition("#")[0]).stem
        if "://" in target:
            return f"{words} ({target})"
        return f"{words} (overlapscope explain {page})" if page in known else words

    return _LINK.sub(shown, text)


def _list_moments(args: argparse.Namespace) -> int:
    """Print the longest times in which ranks computed nothing, each with the command that explains it."""
    args.inputs = [Path(each) for each in args.given]

    from overlapscope.analysis.graph.explained import longest_moments  # noqa: PLC0415 - keeps --help light
    from overlapscope.cli.read_run import read_run  # noqa: PLC0415
    from overlapscope.report.text import chain  # noqa: PLC0415

    loaded = read_run(args)
    warn("explain", loaded.sources)
    found = longest_moments(loaded)
    if args.json:
        print(json.dumps({"schema": "overlapscope.moments/1", "moments": [each._asdict() for each in found]}, indent=2))
    else:
        print(printable(chain.moments_text(found, shell_words(args.given))), end="")
    return 0


def _explain(args: argparse.Namespace) -> int:
    """Print what a moment or a span of a run waited for."""
    option, text, form = ("--at", args.at, _AT) if args.at is not None else ("--span", args.span, _SPAN)
    asked = form.fullmatch(text)
    if asked is None:
        example = "3:412.5 (rank 3, 412.5 ms)" if option == "--at" else "3:1024 (rank 3, span 1024)"
        raise UsageError(f"{option} {text[:80]!r}: write it as {example}")
    if not 1 <= args.links <= MOST_LINKS:
        raise UsageError(f"--links {args.links}: give a number from 1 to {MOST_LINKS}")
    if "" in args.given:
        raise UsageError("the path is empty: is a variable not set?")
    args.inputs = [Path(each) for each in args.given]

    from overlapscope.analysis.graph.explained import RunChains  # noqa: PLC0415 - keeps --help light
    from overlapscope.cli.read_run import read_timed_run  # noqa: PLC0415
    from overlapscope.report.formats import json as as_json  # noqa: PLC0415
    from overlapscope.report.text import chain  # noqa: PLC0415

    loaded = read_timed_run(args)
    warn("explain", loaded.sources)
    rank, chains = int(asked[1]), RunChains(loaded)
    if option == "--at":
        found = chains.at(rank, round(float(asked[2]) * 1e6), most=args.links)
    else:
        found = chains.before(rank, int(asked[2]), most=args.links)
    warn("explain", loaded.unreadable_hosts)
    if args.json:
        print(escaped(as_json.render(found)), end="")
        return 0
    rows = [each.links for each in chain.stretches(found.chain)]
    gains = chains.gains(found, rows, of_span=option == "--span")
    print(printable(chain.render(found, gains)), end="")
    return 0


def pages() -> dict[str, dict[str, Path]]:
    """Return the pages of each id by what they are of (`finding`, `recommendation`).

    In an installed package they are `pages` in it, in the repository `docs` beside it.
    """
    here = Path(overlapscope.__file__).parent
    inside = here / "pages" if (here / "pages").is_dir() else here.parent / "docs"
    found: dict[str, dict[str, Path]] = {}
    for folder, of in FOLDERS.items():
        for file in (inside / folder).glob("[a-z]*.md"):
            found.setdefault(file.stem, {})[of] = file
    return found
