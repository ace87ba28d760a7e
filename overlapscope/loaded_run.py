"""The public interface of a run that was read: pandas frames and the whole analysis."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.compare.compare import Comparison, compare
from overlapscope.analysis.compare.measured_run import measure_run
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.options import ReadOptions, check_paths
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.facts import FACT_TABLES
from overlapscope.timeline.run import TABLES, Run, Source
from overlapscope.timeline.store.arrow_tables import to_arrow
from overlapscope.timeline.store.load_save import save_run
from overlapscope.version import __version__


class LoadedRun:
    """A run in memory; times in all frames are integer nanoseconds, missing values are <NA>."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._analysis: Analysis | None = None

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
            rows.append({"rank": info.rank, "step": None, "complete": None, **_figures(info.whole)})
            rows += [{"rank": info.rank, "step": s.step, "complete": s.complete, **_figures(s)} for s in info.steps]
        frame = pd.DataFrame(rows, columns=["rank", "step", "complete", *_figures(Breakdown())])
        integers = [name for name in frame.columns if name.endswith("_ns") or name in ("rank", "step")]
        types = dict.fromkeys(integers, "Int64") | {"complete": "boolean"}
        ratios = [name for name in frame.columns if name not in types]
        return frame.astype(types | dict.fromkeys(ratios, "Float64"))

    def table(self, name: str, rank: int | None = None) -> pd.DataFrame:
        """Return one table of a rank, or, without `rank`, one table of the job.

        Tables of a rank: recordings, spans, collectives, steps, lanes, annotations, gradients, telemetry, host (spans
        of host threads), syncs. Tables of the job: those of `overlapscope.timeline.facts` (members, links,
        measurements, ...). Raises KeyError for any other name, InputError if host spans cannot be read any more.
        """
        if rank is None:
            facts = self.run.facts
            arrow = to_arrow(getattr(facts, name if name in FACT_TABLES else _unknown(name)), facts.names)
        else:
            timeline = self.run.ranks[rank]
            arrow = to_arrow(getattr(timeline, name if name in TABLES else _unknown(name)), timeline.names, rank)
        frame: pd.DataFrame = arrow.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        return frame

    def compare(self, candidate: "LoadedRun") -> Comparison:
        """Compare with another run, this one being the base: the value that `overlapscope compare --json` prints."""
        return compare([measure_run(self.run, "base")], [measure_run(candidate.run, "candidate")])

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write a run directory; `force` replaces an existing one."""
        from overlapscope.ingest.write_run import require_output_free  # noqa: PLC0415 - not needed for reading

        (out,) = check_paths("save", [path])
        require_output_free(out, force=force)
        save_run(self.run, out, version=__version__, force=force)


def read(paths: Sequence[str | PathLike[str]], options: ReadOptions, *, workers: int | None) -> LoadedRun:
    """Do the work of `overlapscope.load`."""
    return LoadedRun(read_inputs(check_paths("load", paths), options, workers=workers))


def _figures(breakdown: msgspec.Struct) -> dict[str, Any]:
    values = msgspec.structs.asdict(breakdown)
    return {name: value for name, value in values.items() if name not in ("causes", "idle_causes", "step", "complete")}


def _unknown(name: str) -> str:
    raise KeyError(
        f"there is no table {name!r}; tables of a rank: {', '.join(TABLES)}; of the job: {', '.join(FACT_TABLES)}"
    )
