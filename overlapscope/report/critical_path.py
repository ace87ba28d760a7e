"""The critical path of the median step, in three lines."""

from typing import Final

from overlapscope.analysis.critical_path import CriticalPath

WORDS: Final = {
    "compute": "compute",
    "transfer": "transfer",
    "communication": "communication (waiting not told apart)",
    "copy": "copies",
    "launch": "launches on their way",
    "host": "host",
    "host_or_wait": "host, or waiting for its device",
    "idle": "idle",
}
MOST_RANKS = 4
WORTH_SHOWING = 0.001
MOST_NAMES = 3
LONGEST_NAME = 48


def lines(found: CriticalPath) -> str:
    """Give the text; where no path is told, why."""
    path = next((each for each in found.steps if each.step == found.median_step), None)
    if path is None or not path.length_ns:
        return f"No critical path is told: {found.reason}." if found.reason else ""

    def share(ns: int) -> str:
        return f"{ns / path.length_ns * 100:.1f} %"

    what = "the recording" if path.step is None else f"step {path.step}, the median"
    within = (
        "" if found.scope == "ranks" else f", within rank {path.rank}: what it waited for on others is not recorded"
    )
    shown = {part: ns for part, ns in path.parts.items() if ns >= WORTH_SHOWING * path.length_ns}
    parts = sorted(shown.items(), key=lambda item: -item[1])
    text = [
        f"Critical path of {what}: {path.length_ns / 1e6:,.3f} ms{within}.",
        "  " + ", ".join(f"{WORDS[part]} {share(ns)}" for part, ns in parts),
    ]
    if found.scope == "ranks":
        ranks = list(path.ranks.items())
        more = f", {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
        text[-1] += "; on " + ", ".join(f"rank {rank} {share(ns)}" for rank, ns in ranks[:MOST_RANKS]) + more
    if path.operations:
        named = (f"{each.part}: {_short(each.name)} {each.ns / 1e6:,.3f} ms" for each in path.operations[:MOST_NAMES])
        text.append("  most of it " + ", ".join(named))
    return "\n".join(text)


def _short(name: str) -> str:
    flat = " ".join(name.split())
    return flat if len(flat) <= LONGEST_NAME else flat[: LONGEST_NAME - 3] + "..."
