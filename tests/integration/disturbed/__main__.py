"""Record and judge them all, twenty of each kind in each mode; part of `make test-long`.

    python -m tests.integration.disturbed [RECORDINGS [FOLDER]]

The result is kept in tests/LONG.md. Recordings that FOLDER has already are judged again. The exit
code is 1 when fewer than 19 of 20 are right.
"""

import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.integration.disturbed.judge import Verdict, judge, table
from tests.integration.disturbed.network import Network, NotAllowedError, links_to_compare
from tests.integration.disturbed.plan import ON_LINKS, ON_ONE_HOST, WORLD, Recording, plan
from tests.integration.disturbed.record import record
from tests.support.long_results import keep

WANTED = 0.95
A_JOB = 5
"""Seeds that one job records: its processes start anew between them."""
SAID = f"""{WORLD} ranks over gloo, recorded by `overlapscope.profile`. Right is: the disturbed rank and nobody else is
named, with its cause; for slow links, the link is found, no rank is said to be late, and no wrong rank's link is named;
undisturbed, nothing is said of anybody, or it is said that a rank computes longer (or slower, not: more), which by its
thread's own clock took that much longer for the same work: cores are not equal while other machines run on them. With
two of the ranks on one core, ranks are said to share cores and nobody is late; with a core for each, neither (but that
one core is too few): that needs a machine which does nothing else. The share is of the disturbed step, by the job's own
clock."""


def main(number: int, folder: Path) -> int:
    """Record, judge, print and keep; give the exit code."""
    verdicts: list[Verdict] = []
    reason = ""
    for first in range(0, number, A_JOB):
        seeds = range(first, min(first + A_JOB, number))
        verdicts += _one_job(plan(ON_ONE_HOST, seeds), folder / f"host{first}")
        try:
            with links_to_compare(WORLD) as links:
                verdicts += _one_job(plan(ON_LINKS, seeds), folder / f"links{first}", links)
        except NotAllowedError as error:
            reason = f"\n\nSlow links were not recorded: {error}"
        text = f"{SAID}\n\n{table(verdicts)}{reason}"
        keep("Disturbed ranks", text)
    shares: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for each in verdicts:
        shares[each.recording.kind, each.recording.mode].append(each.right)
    sys.stdout.write(text + "\n")
    return int(any(sum(right) < WANTED * len(right) for right in shares.values()))


def _one_job(recordings: list[Recording], folder: Path, links: Network | None = None) -> list[Verdict]:
    if not (folder / "runs" / recordings[-1].name).exists():
        record(recordings, folder, links)
    return [judge(each, folder) for each in recordings]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made of processes and networks is taken away
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    if len(sys.argv) > 2:
        sys.exit(main(number, Path(sys.argv[2])))
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(number, Path(made)))
