"""pytest plugin: record training steps in a test, and fail the test if they regressed against a saved baseline.

    @pytest.mark.overlap(baseline="tests/baselines/ddp")
    def test_a_step(overlap):
        with overlap.record(model=model) as scope:
            for batch in batches:
                with scope.step():
                    train(batch)

The fixture `overlapscope_dryrun` does the same with a dry run, which needs no device.

`pytest --overlap-save` saves the recordings of such tests as their baselines. Nothing heavy is imported before a marked
test ends, and this file never imports torch: the test does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from overlapscope.errors import OverlapScopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from overlapscope.analysis.compare.measured_run import MeasuredRun
    from overlapscope.capture.session import Session
    from overlapscope.gate.policy import Policy
    from overlapscope.gate.verdict import Gate
    from overlapscope.timeline.run import Run

MARK: Final = "overlap"
SAVE: Final = "--overlap-save"
_OURS: Final = ("baseline", "policy")
_RECORDER: Final[pytest.StashKey[Recorder]] = pytest.StashKey()


class Recorder:
    """The value of the fixture `overlap`: records runs of the code under test, each a run of the candidate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = 0

    def new_run(self) -> Path:
        """Return the run directory of the next recording, for ranks in other processes that record into it."""
        self._runs += 1
        self.folder.mkdir(exist_ok=True)
        return self.folder / f"run-{self._runs:02d}"

    def record(self, **options: Any) -> Session:
        """Record in this process: call `overlapscope.profile` with these arguments and a new run directory.

        With four recordings or more, the test compares runs with runs, which separates chance from a regression best.
        """
        import overlapscope  # noqa: PLC0415 - nothing is imported before it is needed

        return overlapscope.profile(self.new_run(), **{"mode": "events", "measure_overhead": False, **options})


class DryRunGate:
    """The value of the fixture `overlapscope_dryrun`: runs a step on fake tensors, and judges it against a baseline."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __call__(
        self,
        build: Callable[..., Callable[[], Any]],
        *,
        world_size: int,
        baseline: str,
        ranks: Sequence[int] = (0,),
        mesh: Mapping[str, int] | None = None,
        policy: str | None = None,
        **settings: Any,
    ) -> None:
        """Call `overlapscope.dryrun` with `build`, `world_size`, `ranks`, `mesh`; gate the run against `baseline`.

        `policy` and the other arguments are as those of the marker `overlap`. With `--overlap-save` the run is saved as
        the baseline instead. A regression, and what cannot be judged, fails the test with the gate's words.
        """
        __tracebackhide__ = True
        import overlapscope  # noqa: PLC0415 - nothing is imported before it is needed

        place = self._item.config.rootpath / baseline
        try:
            known = _policy(self._item, {"baseline": baseline, "policy": policy, **settings})
            run = overlapscope.dryrun(build, world_size=world_size, ranks=ranks, mesh=mesh).run
            if self._item.config.getoption(SAVE):
                _save_runs([run], place)
                return
            words = _words(self._item, _judge_dry_run(run, place, known))
        except OverlapScopeError as error:
            words = f"overlapscope_dryrun: {error}"
        if words is not None:
            pytest.fail(words, pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--overlap-save`."""
    parser.getgroup("overlap").addoption(
        SAVE, action="store_true", help="save recordings of tests marked `overlap` as their baselines; judge nothing"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "overlap(baseline=PATH, policy=FILE, **settings): judge what the test records with the fixture `overlap` "
        "against a saved run; settings are keys of the gate's policy, such as budgets or fail_on",
    )


@pytest.fixture
def overlap(request: pytest.FixtureRequest, tmp_path: Path) -> Recorder:
    """Record runs of the code under test; `@pytest.mark.overlap(baseline=...)` judges them when the test has passed."""
    recorder = Recorder(tmp_path / "overlap")
    request.node.stash[_RECORDER] = recorder
    return recorder


@pytest.fixture
def overlapscope_dryrun(request: pytest.FixtureRequest) -> DryRunGate:
    """Dry-run a training step, and fail the test where it does something else than its baseline; needs no device."""
    return DryRunGate(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Judge a marked test after its own assertions, so that a regression is a failure of the test, not an error."""
    result = yield
    mark = item.get_closest_marker(MARK)
    if mark is not None:
        try:
            words = _judged(item, mark)
        except OverlapScopeError as error:
            words = f"overlap: {error}"
        if words is not None:
            pytest.fail(words, pytrace=False)
    return result


def _judged(item: pytest.Item, mark: pytest.Mark) -> str | None:
    """Return why the test fails; None if it passes."""
    baseline = mark.kwargs.get("baseline")
    if mark.args:
        raise UsageError("@pytest.mark.overlap takes named arguments only: baseline=..., policy=..., budgets=...")
    recorder = item.stash.get(_RECORDER, None)
    if recorder is None or not recorder.folder.exists():
        raise UsageError("the test recorded nothing: use the fixture `overlap` and its `overlap.record(...)`")
    policy = _policy(item, mark.kwargs)
    if item.config.getoption(SAVE) and baseline is not None:
        _save(recorder, item.config.rootpath / baseline)
        return None
    return _words(item, _gate(recorder, None if baseline is None else item.config.rootpath / baseline, policy))


def _words(item: pytest.Item, gate: Gate) -> str | None:
    """Add the gate's words to the test's report; return them where it fails the test."""
    from overlapscope.cli.output import printable  # noqa: PLC0415
    from overlapscope.report.sheet import gate_text  # noqa: PLC0415

    words = printable(gate_text.render(gate))
    item.user_properties.append(("overlap", gate.verdict))
    item.add_report_section("call", "overlap", words)
    return words if gate.exit_code else None


def _policy(item: pytest.Item, given: Mapping[str, Any]) -> Policy:
    """Return the policy of the file, changed by the marker's own settings."""
    from msgspec.structs import replace  # noqa: PLC0415

    from overlapscope.cli.policy_file import read_policy  # noqa: PLC0415
    from overlapscope.gate.policy import policy_of  # noqa: PLC0415

    file = given.get("policy")
    known = read_policy(None if file is None else item.config.rootpath / file)
    settings = {key: list(v) if isinstance(v, tuple) else v for key, v in given.items() if key not in _OURS}
    own = policy_of(settings)
    policy = replace(known, **{key: getattr(own, key) for key in settings})
    if given.get("baseline") is None:
        if not policy.budgets:
            raise UsageError(
                "@pytest.mark.overlap needs a baseline or budgets: there is nothing to compare the run with"
            )
        return replace(policy, metrics=())  # only the budgets can fail it
    return policy


def _save(recorder: Recorder, place: Path) -> None:
    from overlapscope.ingest.run_folder import read_side  # noqa: PLC0415

    _save_runs([run for _, run in read_side(recorder.folder)], place)


def _save_runs(runs: Sequence[Run], place: Path) -> None:
    from overlapscope.timeline.store.baselines import save_baseline  # noqa: PLC0415
    from overlapscope.version import __version__  # noqa: PLC0415

    save_baseline(runs, place, version=__version__, force=True)


def _judge_dry_run(run: Run, place: Path, policy: Policy) -> Gate:
    from overlapscope.analysis.compare.measured_run import measure_run  # noqa: PLC0415
    from overlapscope.gate.verdict import judge  # noqa: PLC0415

    _require(place)
    left_out: tuple[list[str], list[str]] = ([], [])
    return judge(_measured(place, left_out[0]), [measure_run(run, "dry run")], policy, None, left_out)


def _require(place: Path) -> None:
    if not place.exists():
        raise UsageError(f"there is no baseline {place}: record it with `pytest {SAVE}`")


def _gate(recorder: Recorder, place: Path | None, policy: Policy) -> Gate:
    from overlapscope.cli.policy_file import read_floor  # noqa: PLC0415
    from overlapscope.gate.verdict import judge  # noqa: PLC0415

    if place is not None:
        _require(place)
    left_out: tuple[list[str], list[str]] = ([], [])
    candidate = _measured(recorder.folder, left_out[1])
    base = candidate if place is None else _measured(place, left_out[0])
    floor = None if policy.floor is None else read_floor(Path(policy.floor))
    return judge(base, candidate, policy, floor, left_out)


def _measured(place: Path, left_out: list[str]) -> list[MeasuredRun]:
    from overlapscope.analysis.compare.measured_run import measure_run  # noqa: PLC0415
    from overlapscope.ingest.run_folder import read_side  # noqa: PLC0415

    return [measure_run(run, name) for name, run in read_side(place, left_out=left_out)]
