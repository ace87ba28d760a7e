"""Whether what the analysis says of a recording is what was done to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

import overlapscope
from tests.integration.disturbed.plan import CORES, WORLD, Recording

CAUSES = {
    "compute": "more_work",
    "sleep": "host",
    "loader": "data_loading",
    "collector": "garbage_collector",
}
SLOW_LINK, SHARED_CORES = "slow_link", "shared_cores"
OF_A_SLOWER_CORE = {"slower_compute", "longer_compute"}
CONFIRMS = 0.5
"""The job's own clock says that a rank took longer for the same work, if it did by this share of its blame."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of one recording."""

    recording: Recording
    accused: tuple[tuple[int, str], ...]
    """Ranks and what held them."""
    slow_links: tuple[int | None, ...]
    """For each finding of a slow link, the rank it names."""
    shared_cores: bool
    """Whether ranks are said to share cores: right of `shared_core`, wrong of `own_cores`, and of the others what
    the machine beside them makes it."""
    share: float | None
    """By the job's own clock, the disturbance's share of the disturbed step; None where nothing was held up."""
    evidence: Any = None
    slower: tuple[int, ...] = ()
    """Accused ranks that took longer on their cores by the job's own clock, though nobody had more to do: cores of one
    machine are not equal while other machines run on it."""

    @property
    def right(self) -> bool:
        kind, rank = self.recording.kind, self.recording.rank
        if kind in CAUSES:
            return self.accused == ((rank, CAUSES[kind]),) and not self.slow_links
        if kind == "one_slow_link":
            return not self.accused and bool(self.slow_links) and set(self.slow_links) <= {rank, None}
        if kind == "all_slow_links":
            return not self.accused and bool(self.slow_links) and set(self.slow_links) == {None}
        if kind in CORES and self.shared_cores != (kind == "shared_core"):
            return False
        slower = all(rank in self.slower and held_by in OF_A_SLOWER_CORE for rank, held_by in self.accused)
        return slower and not self.slow_links


def judge(recording: Recording, folder: Path) -> Verdict:
    """Load the run and compare; the share is from what the job wrote itself."""
    found = overlapscope.load(folder / "runs" / recording.name).analysis()
    own = [
        json.loads((folder / f"{recording.name}.rank{rank}.json").read_text(encoding="utf-8")) for rank in range(WORLD)
    ]
    share = None
    if recording.kind in CAUSES:
        mine = own[recording.rank or 0]
        share = median(held / period for held, period in zip(mine["held_s"][:-1], mine["periods_s"][:-1], strict=True))
    return Verdict(
        recording=recording,
        slower=tuple(each.rank for each in found.skew.stragglers if _took_longer(each, own)),
        accused=tuple((each.rank, each.held_by) for each in found.skew.stragglers),
        slow_links=tuple(
            each.evidence.get("rank") for each in found.findings if each.id.partition(":")[0] == SLOW_LINK
        ),
        shared_cores=any(each.id.partition(":")[0] == SHARED_CORES for each in found.findings),
        share=share,
        evidence=[each.evidence for each in found.skew.stragglers],
    )


def _took_longer(straggler: Any, own: Sequence[dict[str, Any]]) -> bool:
    ran = np.array([each["worked_s"] for each in own])
    more_s = (ran[straggler.rank] - np.median(np.delete(ran, straggler.rank, axis=0), axis=0)).sum()
    return bool(more_s * 1e9 >= CONFIRMS * straggler.blame_ns)


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the figures by kind and mode, as a text for people."""
    lines = [
        "| disturbance | mode | recordings | right | of them on a slower core | named else "
        "| share of the step, least and median |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, mode in dict.fromkeys((each.recording.kind, each.recording.mode) for each in verdicts):
        mine = [each for each in verdicts if (each.recording.kind, each.recording.mode) == (kind, mode)]
        shares = [each.share for each in mine if each.share is not None]
        wrong = [f"{each.recording.name}: {_said(each)}" for each in mine if not each.right]
        span = f"{min(shares):.2f}, {median(shares):.2f}" if shares else ""
        lines.append(
            f"| {kind.replace('_', ' ')} | {mode} | {len(mine)} | {sum(each.right for each in mine)} | "
            f"{sum(each.right and kind not in CAUSES and bool(each.accused) for each in mine) or ''} | "
            f"{'; '.join(wrong)} | {span} |"
        )
    return "\n".join(lines)


def _said(verdict: Verdict) -> str:
    said = [f"rank {rank} {held_by}" for rank, held_by in verdict.accused]
    said += [f"slow link{'' if rank is None else f' of rank {rank}'}" for rank in verdict.slow_links]
    said += ["shared cores"] if verdict.shared_cores else []
    return ", ".join(said) or "nobody"
