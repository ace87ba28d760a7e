"""The public interface of a run that was read: pandas frames, the whole analysis, and what a notebook shows of it."""

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import pandas as pd
import pyarrow as pa

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.compare.compare import Comparison, compare
from overlapscope.analysis.compare.measured_run import measure_run
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.job_step.headline import StepOfJob
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.errors import OverlapScopeError
from overlapscope.ingest.options import ReadOptions, check_paths
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.facts import FACT_TABLES
from overlapscope.timeline.run import TABLES, Run, Source
from overlapscope.timeline.store.arrow_tables import to_arrow
from overlapscope.timeline.store.load_save import save_run
from overlapscope.version import __version__

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from overlapscope_dashboards.notebook.figures import RunInMemory

_NOT_IN_FRAMES = frozenset(
    {"causes", "idle_causes", "apply", "evidence", "measured", "assumed", "published", "shown_by"}
)
"""Fields that hold more than one value; `analysis()` has them."""


class LoadedRun:
    """A run in memory, which shows its overview as the last value of a notebook's cell.

    Times in all frames are integer nanoseconds (`_ns` in the name), sizes bytes, ratios 0..1; missing values are <NA>.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._analysis: Analysis | None = None
        self._drawn: RunInMemory | None = None

    def __repr__(self) -> str:
        return f"<overlapscope run: ranks {self.ranks} of {self.world_size}>"

    @property
    def ranks(self) -> list[int]:
        """Ranks that were recorded."""
        return list(self.run.ranks)

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job; None where no source states it."""
        return self.run.world_size

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files that were read, with counts and warnings of each."""
        return self.run.sources

    def analysis(self) -> Analysis:
        """Return the whole analysis: the value that `overlapscope analyze --json` prints."""
        if self._analysis is None:
            self._analysis = analyze_with_advice(self.run)
        return self._analysis

    def breakdown(self) -> pd.DataFrame:
        """Return one row for each rank's whole recording (`step` is <NA>) and each of its steps.

        Columns: rank, step, complete, then the fields of the breakdown; `complete` is <NA> for a whole recording.
        """
        rows: list[dict[str, Any]] = []
        for info in self.analysis().ranks:
            rows.append({"rank": info.rank, "step": None, "complete": None, **msgspec.structs.asdict(info.whole)})
            rows += [{"rank": info.rank, **msgspec.structs.asdict(step)} for step in info.steps]
        return _frame(rows, {"rank": "Int64", "step": "Int64", "complete": "boolean", **_columns(Breakdown)})

    def causes(self) -> pd.DataFrame:
        """Return exposed and idle time by cause: one row for each rank, window and cause with any.

        Columns: rank, step (<NA> for a whole recording), state (`exposed` or `idle`), cause, time_ns. The rows of a
        window add up to its `exposed_comm_ns` and `idle_ns` of `breakdown()`, where causes are known.
        """
        rows = [
            {"rank": info.rank, "step": step, "state": state, "cause": cause, "time_ns": ns}
            for info in self.analysis().ranks
            for step, window in [(None, info.whole), *((each.step, each) for each in info.steps)]
            for state, causes in (("exposed", window.causes), ("idle", window.idle_causes or {}))
            for cause, ns in causes.items()
            if ns
        ]
        kinds = {"rank": "Int64", "step": "Int64", "state": "string", "cause": "string", "time_ns": "Int64"}
        return _frame(rows, kinds)

    def steps(self) -> pd.DataFrame:
        """Return the steps of the job, one row each: its length and its parts, means over ranks, which add up to it.

        The medians of these columns are the headline of `overlapscope analyze`. Without a complete step there is one
        row, of the whole recording, whose `step` is <NA>.
        """
        return _of_structs(self.analysis().headline.job_steps, StepOfJob)

    def collectives(self) -> pd.DataFrame:
        """Return one row for each kind of collective (operation, group, type, size), the longest in all first."""
        return _of_structs(self.analysis().collectives, CollectiveRow)

    def findings(self) -> pd.DataFrame:
        """Return one row for each finding: id, severity, title."""
        return _of_structs(self.analysis().findings, Finding)

    def recommendations(self) -> pd.DataFrame:
        """Return one row for each recommendation, the largest loss first, with its gain; how to apply it is text."""
        return _of_structs(self.analysis().recommendations, Recommendation)

    def table(
        self,
        name: str,
        rank: int | None = None,
        *,
        dtype_backend: Literal["numpy_nullable", "pyarrow"] = "numpy_nullable",
    ) -> pd.DataFrame:
        """Return one table of a rank, or, without `rank`, one table of the job.

        Tables of a rank: recordings, spans, collectives, steps, lanes, annotations, gradients, telemetry, host (spans
        of host threads), syncs. Tables of the job: those of `overlapscope.timeline.facts` (members, links,
        measurements, ...). With `dtype_backend="pyarrow"`, as pandas calls it, columns of numbers are not copied: the
        frame shares the run's memory, and must not be written to. Raises KeyError for any other name, InputError if
        host spans cannot be read any more.
        """
        if rank is None:
            facts = self.run.facts
            arrow = to_arrow(getattr(facts, name if name in FACT_TABLES else _unknown(name)), facts.names)
        else:
            timeline = self.run.ranks[rank]
            arrow = to_arrow(getattr(timeline, name if name in TABLES else _unknown(name)), timeline.names, rank)
        mapper = pd.ArrowDtype if dtype_backend == "pyarrow" else {pa.int64(): pd.Int64Dtype()}.get
        frame: pd.DataFrame = arrow.to_pandas(types_mapper=mapper)
        return frame

    def timeline(
        self,
        *,
        ranks: Sequence[int] | None = None,
        step: int | None = None,
        window_ms: tuple[float, float] | None = None,
        host: bool = False,
        critical_path: bool = False,
    ) -> "go.Figure":
        """Return the timeline as a Plotly figure: all ranks above, the streams of `ranks` (at first four) below.

        It shows the whole run, one `step`, or `window_ms`: begin and end in ms from the run's start. Single spans are
        drawn where at most 2,000 are in it, else the time that they cover. `host` adds the rows of host threads,
        `critical_path` what decided how long each step took.

        Raises UsageError for a rank or step that was not recorded, InputError where the run has no times.
        """
        from overlapscope_dashboards.notebook.figures import RunInMemory, timeline  # noqa: PLC0415 - plotly is slow

        self._drawn = self._drawn or RunInMemory(self.run)
        return timeline(
            self._drawn, ranks=ranks, step=step, window_ms=window_ms, host=host, critical_path=critical_path
        )

    def waterfall(
        self, candidate: "LoadedRun | None" = None, *, by: Literal["part", "cause", "collective"] = "part"
    ) -> "go.Figure":
        """Return where a step goes as a Plotly figure; with `candidate`, where the difference to this run comes from.

        A difference is split `by` part of the step, or that of exposed time by cause or by collective.

        Raises UsageError for another `by`, InputError where a run has no times.
        """
        from overlapscope_dashboards.notebook import figures  # noqa: PLC0415 - as above

        if candidate is None:
            return figures.step_waterfall(self.analysis())
        return figures.difference_waterfall(self.compare(candidate), by)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the overview as HTML for notebooks, and what `overlapscope analyze` prints for terminals."""
        from overlapscope.report.text import analysis as text  # noqa: PLC0415 - not needed for reading

        shown = self._repr_html_()
        try:
            return ({} if shown is None else {"text/html": shown}) | {"text/plain": text.render(self.analysis())}
        except OverlapScopeError as error:
            return {"text/plain": f"{self!r}\n{error}"}

    def _repr_html_(self) -> str | None:
        """Return the overview for a cell of a notebook; None where host spans cannot be read any more.

        IPython asks for it even where the bundle has none, and would print a traceback.
        """
        from overlapscope_dashboards.notebook.overview import overview_html  # noqa: PLC0415 - as above

        try:
            return overview_html(self.analysis())
        except OverlapScopeError:
            return None

    def compare(self, candidate: "LoadedRun") -> Comparison:
        """Compare with another run, this one being the base: the value that `overlapscope compare --json` prints."""
        return compare([measure_run(self.run, "base")], [measure_run(candidate.run, "candidate")])

    def log(self, to: str, *, name: str = "overlapscope") -> str:
        """Log steps and headline with a tracker, and return where: `tensorboard`, `wandb` or `mlflow`, with `=PLACE`.

        A run of wandb or MLflow that is active in this process gets them; else a new one called `name`. PLACE is a
        folder, of MLflow a tracking URI. Raises UsageError where the tracker is not installed, InputError where it
        refuses.
        """
        from overlapscope.report.trackers import log  # noqa: PLC0415 - not needed for reading

        return log(self.analysis(), name, to)

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write a run directory; `force` replaces an existing one."""
        from overlapscope.ingest.write_run import require_output_free  # noqa: PLC0415 - not needed for reading

        (out,) = check_paths("save", [path])
        require_output_free(out, force=force)
        save_run(self.run, out, version=__version__, force=force)


def read(paths: Sequence[str | PathLike[str]], options: ReadOptions, *, workers: int | None) -> LoadedRun:
    """Do the work of `overlapscope.load`."""
    return LoadedRun(read_inputs(check_paths("load", paths), options, workers=workers))


def _of_structs(rows: Iterable[msgspec.Struct], kind: type[msgspec.Struct]) -> pd.DataFrame:
    return _frame([msgspec.structs.asdict(each) for each in rows], _columns(kind))


def _columns(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the pandas type of each field that holds one value."""
    found = {each.name: _dtype(each.type) for each in msgspec.structs.fields(kind)}
    return {name: dtype for name, dtype in found.items() if name not in _NOT_IN_FRAMES}


def _dtype(annotation: Any) -> str:
    kinds = {annotation, *get_args(annotation)}
    known = {bool: "boolean", float: "Float64", int: "Int64"}  # of `int | float`, numbers
    return next((dtype for kind, dtype in known.items() if kind in kinds), "string")


def _frame(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _unknown(name: str) -> str:
    raise KeyError(
        f"there is no table {name!r}; tables of a rank: {', '.join(TABLES)}; of the job: {', '.join(FACT_TABLES)}"
    )
