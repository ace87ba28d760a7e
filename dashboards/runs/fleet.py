"""All runs of the served folder, compared with each other; measured again only where files changed."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from overlapscope.analysis.compare.fleet import Fleet, fleet
from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.fleet.find import RunPlace, job_name, unique_names
from overlapscope.fleet.read import read_fleet
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope_dashboards.runs.catalog import RunLocation, run_revision, without_root


class ServedFleet:
    """The fleet of one dashboard. The last comparison is kept until a run appears, changes or goes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = Lock()
        self._kept: tuple[str, Fleet] | None = None
        self.doing = "Looking for runs."
        """Progress as a sentence."""

    def compare(self, found: Sequence[RunLocation]) -> tuple[Fleet, str]:
        """Return the comparison of the run directories among `found`, and a digest that changes when a file does.

        Figures stored by `compare --fleet` are used; nothing is written into the served folder. A run with a link that
        points outside it costs itself.
        """
        revisions: dict[RunLocation, str] = {}
        refused = []
        names = dict(zip((each.id for each in found), unique_names([each.name for each in found]), strict=True))
        for each in found:
            if len(each.inputs) == 1 and is_run_directory(each.inputs[0]):
                try:
                    revisions[each] = run_revision(each)[0]
                except InputError as error:
                    refused.append(without_root(str(error), each))
        state = repr([refused, *((each.id, revision) for each, revision in revisions.items())])
        revision = hashlib.blake2b(state.encode()).hexdigest()[:16]
        with self._lock:
            if self._kept is None or self._kept[0] != revision:
                self._kept = revision, self._compare(list(revisions), names, refused)
            return self._kept[1], revision

    def _compare(self, places: Sequence[RunLocation], names: Mapping[str, str], refused: Sequence[str]) -> Fleet:
        measured = read_fleet(
            self._root, [_place(each, names[each.id]) for each in places], progress=self._note, keep=False
        )
        reasons = measured.left_out
        for each in places:
            reasons = [without_root(reason, each) for reason in reasons]
        return fleet(measured.runs, [*refused, *reasons])

    def _note(self, done: int, runs: int, name: str) -> None:
        self.doing = f"{done} of {runs} runs read; the last one is {name}."


def _place(location: RunLocation, name: str) -> RunPlace:
    path = location.inputs[0]
    root = location.root.absolute()
    parts = path.relative_to(root).parts if path != root else (path.name,)
    return RunPlace(path=path, name=name, job=job_name(parts, display_path(Path(root.name))))
