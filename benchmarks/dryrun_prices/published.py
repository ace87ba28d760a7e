"""Prices of dry runs against published steps: Llama 3.1 8B in torchtitan's benchmarks, and other rows and pairs.

Each distinct step is recorded once, which takes up to a minute on one core. Needs `measured/points.csv`, which does not
travel with the project (tests/README.md says where it is looked for).
"""

import csv
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from overlapscope.ingest.read_run import read_inputs
from overlapscope.whatif.pricing.calibration import Measured, calibrated, priced_ns
from overlapscope.whatif.pricing.constants import usual
from overlapscope.whatif.pricing.devices import device
from overlapscope.whatif.pricing.links import links
from overlapscope.whatif.pricing.prices import Terms, drawn_steps, price_program
from overlapscope.whatif.pricing.program import Program, program_of
from overlapscope.whatif.pricing.recipe import Recipe, parse_recipe
from overlapscope.whatif.pricing.result import INTERVAL
from overlapscope.whatif.pricing.support import ESTIMATE, NONE, support

ROOT: Final = Path(__file__).parents[2]
DATA: Final = Path(os.environ.get("OVERLAPSCOPE_DATA", ROOT.parent / "shared" / "data"))
JOBS: Final[dict[str, dict[str, Any]]] = {
    "fsdp8": {"world_size": 8},
    "fsdp128": {"world_size": 128},
    "fsdp32": {"world_size": 32},
    "32k": {"world_size": 8, "batch": 1, "sequence": 32768, "checkpoint": "full"},
    "64k": {"world_size": 8, "cp": 2, "batch": 1, "sequence": 32768, "checkpoint": "full"},
    "128k": {"world_size": 8, "cp": 4, "batch": 1, "sequence": 32768, "checkpoint": "full"},
    "256k": {"world_size": 8, "cp": 8, "batch": 1, "sequence": 32768, "checkpoint": "full"},
    "tp8": {"world_size": 64, "tp": 8, "batch": 12},
    "8b layers": {"world_size": 64, "batch": 1, "checkpoint": "layers"},
    "8b operations": {"world_size": 64, "batch": 1},
    "13b none": {"world_size": 64, "size": "2-13b", "sequence": 4096, "checkpoint": "none"},
    "13b layers": {"world_size": 64, "size": "2-13b", "sequence": 4096, "checkpoint": "layers"},
    "13b operations": {"world_size": 64, "size": "2-13b", "sequence": 4096},
    "70b operations": {"world_size": 64, "size": "2-70b", "batch": 1, "sequence": 4096},
    "70b full": {"world_size": 64, "size": "2-70b", "sequence": 4096, "checkpoint": "full"},
}
"""Steps of `benchmarks.dryrun_prices.llama` by name."""
TITAN: Final = ("h100-96gb-hbm2e", "8xh100-nvswitch,roce-400")
A100: Final = ("a100-80", "8xa100-nvswitch,ib-200")
"""The network is not published; assumed."""
COMPILED: Final = "compile=layers"
FLOAT8: Final = "compile=layers,float8=tensorwise"
ROWWISE: Final = "compile=layers,float8=rowwise"
OPTIONS: Final = "options(async TP, float8, compile...)"
SPEED: Final = "step_time_ms or tokens_per_s_per_gpu"
Points = Sequence[dict[str, str]]


class Row(NamedTuple):
    """A published step: which job it is, and where `points.csv` has it."""

    name: str
    job: str
    recipe: str
    source: str
    options: str
    gpus: str
    sequence: str = "8192"
    dtype: str = ""


_A = "llama3_h100_202412"
_B = "asyncTP_llama3_h100_2025-06"
ROWS: Final = (
    Row("8 GPUs, eager", "fsdp8", "eager", _A, "FSDP2; SAC", "8"),
    Row("8 GPUs, compile", "fsdp8", COMPILED, _A, "FSDP2; compile; SAC", "8"),
    Row("8 GPUs, float8", "fsdp8", FLOAT8, _A, "FSDP2; compile; float8; SAC", "8"),
    Row("128 GPUs, eager", "fsdp128", "eager", _A, "FSDP2; SAC", "128"),
    Row("128 GPUs, compile", "fsdp128", COMPILED, _A, "FSDP2; compile; SAC", "128"),
    Row("128 GPUs, float8", "fsdp128", FLOAT8, _A, "FSDP2; compile; float8; SAC", "128"),
    Row("8 GPUs, float8, sequence 32k", "32k", FLOAT8, _A, "compile; float8; full AC; CP", "8", "32768"),
    Row("64k over CP2", "64k", FLOAT8, _A, "compile; float8; full AC; CP", "8", "65536"),
    Row("128k over CP4", "128k", FLOAT8, _A, "compile; float8; full AC; CP", "8", "131072"),
    Row("256k over CP8", "256k", FLOAT8, _A, "compile; float8; full AC; CP", "8", "262144"),
    Row("TP8", "tp8", COMPILED, _B, "compile; per-op SAC; vanilla TP", "64", dtype="bf16"),
    Row("TP8, async TP", "tp8", f"{COMPILED},async-tp", _B, "compile; per-op SAC; async TP", "64", dtype="bf16"),
    Row("TP8, tensorwise", "tp8", FLOAT8, _B, "compile; per-op SAC; vanilla TP", "64", dtype="float8 tensorwise"),
    Row("TP8, tensorwise, async TP", "tp8", f"{FLOAT8},async-tp", _B, "compile; per-op SAC; async TP", "64",
        dtype="float8 tensorwise"),
    Row("TP8, rowwise", "tp8", ROWWISE, _B, "compile; per-op SAC; vanilla TP", "64", dtype="float8 rowwise"),
    Row("TP8, rowwise, async TP", "tp8", f"{ROWWISE},async-tp", _B, "compile; per-op SAC; async TP", "64",
        dtype="float8 rowwise"),
)  # fmt: skip
"""All were seen while the prices were built: their errors led to what is modelled, not to any constant but those that a
calibration row fixes."""
A_ROW_EACH: Final = ("8 GPUs, eager", "8 GPUs, compile", "8 GPUs, float8", "TP8, rowwise", "TP8, async TP")
FIRST_ROW: Final = ("8 GPUs, eager",)
LIKE: Final = {
    "TP8": "8 GPUs, compile",
    "TP8, tensorwise": "8 GPUs, float8",
    "TP8, tensorwise, async TP": "8 GPUs, float8",
    "TP8, rowwise, async TP": "TP8, rowwise",
}
"""The row whose FLOP/s would be taken over, where nothing were priced; others take that of their own recipe."""
A100_SPEEDS: Final = {
    "8b layers": 2904, "8b operations": 2973, "13b none": 2162, "13b layers": 1914, "13b operations": 1904,
    "70b operations": 355, "70b full": 353,
}  # fmt: skip
"""Tokens a second and GPU of Llama 3 8B and Llama 2 on 64 A100 80 GB: pytorch/torchtitan@0413364, docs/performance.md.

They were found, and their pairs listed, when all constants stood; none was predicted before.
"""
NEUTRAL: Final = 0.03
PAIRS: Final = (
    ("8 GPUs, eager", "8 GPUs, compile", "compile"),
    ("128 GPUs, eager", "128 GPUs, compile", "compile"),
    ("8 GPUs, compile", "8 GPUs, float8", "float8"),
    ("128 GPUs, compile", "128 GPUs, float8", "float8"),
    ("TP8", "TP8, async TP", "async TP"),
    ("TP8, tensorwise", "TP8, tensorwise, async TP", "async TP"),
    ("TP8, rowwise", "TP8, rowwise, async TP", "async TP"),
    ("TP8", "TP8, tensorwise", "float8"),
    ("TP8", "TP8, rowwise", "float8, a scale a row"),
    ("TP8, tensorwise", "TP8, rowwise", "a scale a row"),
    ("8 GPUs, eager", "128 GPUs, eager", "16 times the ranks"),
    ("8 GPUs, compile", "128 GPUs, compile", "16 times the ranks"),
    ("8 GPUs, float8", "128 GPUs, float8", "16 times the ranks"),
    ("8 GPUs, float8, sequence 32k", "64k over CP2", "twice the sequence over twice the ranks"),
    ("64k over CP2", "128k over CP4", "twice the sequence over twice the ranks"),
    ("128k over CP4", "256k over CP8", "twice the sequence over twice the ranks"),
    ("8b layers", "8b operations", "recompute operations, not layers"),
    ("13b none", "13b layers", "recompute every second layer"),
    ("13b none", "13b operations", "recompute operations"),
    ("13b layers", "13b operations", "recompute operations, not layers"),
    ("70b operations", "70b full", "recompute all, at twice the batch"),
)
"""Pairs of rows of one table. A gain is that of tokens a second."""
OTHER_DEVICES: Final = (
    ("32 H100 80 GB over EFA, torchtitan, batch assumed", "fsdp32", "torchtitan/slurm", "default config", 16384),
    ("8 H100, graph trainer of a pull request", "fsdp8", "184236", "A transformer-block bucketing", 16384),
)
"""What, which job it is, where `points.csv` has it, and the tokens of a GPU. The first was seen, not the second."""


def published_ns(row: Row, points: Points) -> float:
    """Return the step of a row in ns, from its tokens a second and GPU."""
    found = [
        each
        for each in points
        if row.source in each["source"] and each[OPTIONS] == row.options and each["gpus"] == row.gpus
        and each["seq"] == row.sequence and row.dtype in ("", each["dtype"])
    ]  # fmt: skip
    if len(found) != 1:
        raise SystemExit(f"points.csv holds {len(found)} rows of {row.name}, instead of 1")
    tokens = int(found[0]["global_batch"]) * int(found[0]["seq"]) / int(found[0]["gpus"])
    return tokens / float(found[0][SPEED].split()[0]) * 1e9


def programs(folder: Path) -> Callable[[str], Program]:
    """Return the program of a job by name; it is recorded into `folder` where it is not there."""

    @cache
    def found(name: str) -> Program:
        path = folder / name
        if not path.exists():
            _record(name, path)
        return program_of(read_inputs([path]), 0)

    return found


def _record(name: str, path: Path) -> None:
    import overlapscope  # noqa: PLC0415
    from benchmarks.dryrun_prices.llama import build  # noqa: PLC0415 - loads torch

    options = dict(JOBS[name])
    world_size = options.pop("world_size")
    overlapscope.dryrun(partial(build, **options), world_size=world_size, to=path)


class Predicted(NamedTuple):
    """One row of the table."""

    row: Row
    measured_ns: float
    value_ns: float
    low_ns: float
    high_ns: float
    calibration: bool
    refused: bool

    @property
    def error(self) -> float:
        """Relative error."""
        return self.value_ns / self.measured_ns - 1

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the interval."""
        return self.low_ns <= self.measured_ns <= self.high_ns


def predict(
    with_rows: Sequence[str], program: Callable[[str], Program], measured_ns: dict[str, float]
) -> list[Predicted]:
    """Return all rows predicted from those named."""
    terms = terms_of(with_rows, program, measured_ns)
    fit = calibrated(terms.measured, terms.device, terms.links, usual())
    targets = [(program(each.job), parse_recipe(each.recipe)) for each in ROWS]
    low, high = np.quantile(drawn_steps(targets, terms), INTERVAL, axis=0)
    found = []
    for at, (row, (step, recipe)) in enumerate(zip(ROWS, targets, strict=True)):
        value = priced_ns(step, terms.device, terms.links, recipe, fit.applied(usual(), recipe))
        refused = support(step, recipe, terms.measured).kind != ESTIMATE
        least, most = min(float(low[at]), value), max(float(high[at]), value)
        found.append(Predicted(row, measured_ns[row.name], value, least, most, row.name in with_rows, refused))
    return found


def terms_of(
    with_rows: Sequence[str], program: Callable[[str], Program], measured_ns: dict[str, float], key: str = TITAN[0]
) -> Terms:
    """Return what rows are priced for, calibrated with those named."""
    measured = tuple(
        Measured(program=program(each.job), recipe=parse_recipe(each.recipe), step_ns=measured_ns[each.name],
                 source=each.name, device=None if key == TITAN[0] else device(TITAN[0]))
        for each in ROWS
        if each.name in with_rows
    )  # fmt: skip
    return Terms(device=device(key), links=links(TITAN[1]), measured=measured)


def transferred(row: Row, program: Callable[[str], Program], measured_ns: dict[str, float]) -> float:
    """Return the error of a row's step where the FLOP/s of the row with its recipe were taken over."""
    plain = row.recipe.removesuffix(",async-tp")
    like = LIKE.get(row.name) or next(each.name for each in ROWS if each.recipe == plain)
    base = next(each for each in ROWS if each.name == like)
    work = program(row.job).rows.flops.sum() / program(base.job).rows.flops.sum()
    return float(measured_ns[like] * work / measured_ns[row.name] - 1)


def row_table(found: Sequence[Predicted], program: Callable[[str], Program], measured_ns: dict[str, float]) -> str:
    """Return the table of rows with a summary."""
    lines = [
        "| row | published s | predicted s | 80 % interval | error | FLOP/s taken over |",
        "|---|---|---|---|---|---|",
    ]
    counted = [each for each in found if not each.calibration and not each.refused]
    for each in found:
        shown = f"{each.error:+.1%}" if not each.calibration else "calibration"
        value = f"{each.value_ns / 1e9:.3f} | {each.low_ns / 1e9:.3f} .. {each.high_ns / 1e9:.3f}"
        if each.refused:
            value, shown = "refused | ", "refused"
        other = "" if each.calibration else f"{transferred(each.row, program, measured_ns):+.1%}"
        lines.append(f"| {each.row.name} | {each.measured_ns / 1e9:.3f} | {value} | {shown} | {other} |")
    errors = [abs(each.error) for each in counted]
    naive = [abs(transferred(each.row, program, measured_ns)) for each in counted]
    tp = [each for each in counted if each.row.name.startswith("TP8")]
    widths = [(each.high_ns - each.low_ns) / each.value_ns for each in counted]
    better = sum(abs(each.error) < abs(transferred(each.row, program, measured_ns)) for each in tp)
    inside = sum(each.inside for each in counted)
    lines += [
        "",
        f"{len(counted)} predicted rows: median error {median(errors):.1%}, largest {max(errors):.1%}; FLOP/s taken "
        f"over: {median(naive):.1%}, {max(naive):.1%}; of {len(tp)} TP rows {better} are better than that.",
        f"{inside} of {len(counted)} inside the 80 % interval, of median width {median(widths):.0%}.",
    ]
    return "\n".join(lines)


class Step(NamedTuple):
    """A published step of one side of a pair."""

    program: Program
    recipe: Recipe
    step_ns: float
    tokens: int
    machine: tuple[str, str]


def steps_by_name(program: Callable[[str], Program], measured_ns: dict[str, float]) -> dict[str, Step]:
    """Return all published steps by the name of their row, or of their job."""
    found = {
        row.name: Step(program(row.job), parse_recipe(row.recipe), measured_ns[row.name], _tokens(row.job), TITAN)
        for row in ROWS
    }
    return found | {
        job: Step(program(job), parse_recipe("eager"), _tokens(job) / speed * 1e9, _tokens(job), A100)
        for job, speed in A100_SPEEDS.items()
    }


def _tokens(job: str) -> int:
    """Return the tokens of a job's step, for each rank of data and context parallelism, over its ranks of `tp`."""
    options = JOBS[job]
    return int(options.get("batch", 2) * options.get("sequence", 8192) // options.get("tp", 1))


class Call(NamedTuple):
    """What is predicted of a pair: the interval of its gain, or None where it has no price."""

    interval: tuple[float, float] | None

    @property
    def word(self) -> str:
        """`gain` or `loss` where the interval lies on one side of 0."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return ""
        return "gain" if self.interval[0] > 0 else "loss"

    def right(self, gain: float) -> bool:
        """Return whether nothing was called, or the sign of the gain."""
        return not self.word or (self.word == "gain") == (gain > 0)

    def __str__(self) -> str:
        """Return the interval and what is called."""
        if self.interval is None:
            return "not priced"
        return f"{self.interval[0]:+.1%} .. {self.interval[1]:+.1%}: {self.word or 'too close to call'}"


def from_before(before: Step, after: Step) -> Call:
    """Return what the measured step before a change says of its gain."""
    measured = Measured(program=before.program, recipe=before.recipe, step_ns=before.step_ns, source="before")
    terms = Terms(device=device(before.machine[0]), links=links(before.machine[1]), measured=(measured,))
    if support(after.program, after.recipe, terms.measured).kind == NONE:
        return Call(None)
    drawn = drawn_steps([(after.program, after.recipe)], terms)[:, 0]
    gains = before.step_ns / before.tokens * after.tokens / drawn - 1
    low, high = np.quantile(gains, INTERVAL).tolist()
    return Call((low, high))


def from_first_row(names: Sequence[str], steps: dict[str, Step], first: Measured) -> Callable[[str, str], Call]:
    """Return what the first row alone says of the gain of a pair: all steps are predicted, draw by draw."""
    terms = Terms(device=device(TITAN[0]), links=links(TITAN[1]), measured=(first,))
    known = [
        name
        for name in names
        if steps[name].machine == TITAN and support(steps[name].program, steps[name].recipe, (first,)).kind != NONE
    ]
    drawn = drawn_steps([(steps[name].program, steps[name].recipe) for name in known], terms)
    by_name = dict(zip(known, drawn.T, strict=True))

    def call(before: str, after: str) -> Call:
        if not {before, after} <= by_name.keys():
            return Call(None)
        gains = by_name[before] / steps[before].tokens * steps[after].tokens / by_name[after] - 1
        low, high = np.quantile(gains, INTERVAL).tolist()
        return Call((low, high))

    return call


def pair_table(program: Callable[[str], Program], measured_ns: dict[str, float]) -> str:
    """Return the table of on/off pairs, predicted from the step before each change, and from the first row alone."""
    steps = steps_by_name(program, measured_ns)
    first_row = terms_of(FIRST_ROW, program, measured_ns).measured[0]
    alone_of = from_first_row(list(dict.fromkeys(name for pair in PAIRS for name in pair[:2])), steps, first_row)
    lines = [
        "| change | from | published gain | from the step before it | sign | from the first row alone |",
        "|---|---|---|---|---|---|",
    ]
    found: list[tuple[float, Call, Call]] = []
    for before, after, change in PAIRS:
        ours, theirs = steps[before], steps[after]
        gain = (ours.step_ns / ours.tokens) / (theirs.step_ns / theirs.tokens) - 1
        call, alone = from_before(ours, theirs), alone_of(before, after)
        found.append((gain, call, alone))
        sign = "" if not call.word else "right" if call.right(gain) else "wrong"
        lines.append(f"| {change} | {before} | {gain:+.1%} | {call} | {sign} | {alone} |")
    inside = [low <= gain <= high for gain, call, _ in found if call.interval for low, high in [call.interval]]
    plus = sum(gain > 0 for gain, _, _ in found)
    lines += [
        "",
        f"From the step before: {_score([(gain, call) for gain, call, _ in found])}; {sum(inside)} of {len(inside)} "
        "published gains lie in the interval.",
        _beyond([(gain, call) for gain, call, _ in found]),
        f"From the first row alone: {_score([(gain, alone) for gain, _, alone in found])}.",
        f'A constant "+" is right in {plus} of {len(found)} ({plus / len(found):.0%}).',
    ]
    return "\n".join(lines)


def _beyond(found: Sequence[tuple[float, Call]]) -> str:
    """Return how many pairs were called of those that change something, and of the others."""
    large = [call for gain, call in found if abs(gain) > NEUTRAL]
    called = sum(bool(call.word) for call in large)
    refused = sum(call.interval is None for call in large)
    small = [call for gain, call in found if abs(gain) <= NEUTRAL]
    return (
        f"Of {len(large)} pairs that differ by more than {NEUTRAL:.0%}, {called} called and {refused} not priced; of "
        f"{len(small)} that differ by less, {sum(bool(call.word) for call in small)} called."
    )


def _score(found: Sequence[tuple[float, Call]]) -> str:
    """Return how many pairs were called, and how many of them wrong."""
    right = sum(call.right(gain) for gain, call in found)
    called = sum(bool(call.word) for _, call in found)
    priced = sum(call.interval is not None for _, call in found)
    return (
        f"{right} of {len(found)} ({right / len(found):.0%}) right or not called, {called} ({called / len(found):.0%}) "
        f"called, {called / priced:.0%} of the {priced} that are priced"
    )


def other_devices(program: Callable[[str], Program], measured_ns: dict[str, float], points: Points) -> str:
    """Return the table of steps for which only a range is given: without a measured step, and from the first row."""
    lines = [
        "| step | published s | from the data sheet alone | from the first row |",
        "|---|---|---|---|",
    ]
    steps: list[tuple[str, str, float, tuple[str, str]]] = []
    for name, job, source, options, tokens in OTHER_DEVICES:
        row = next(each for each in points if source in each["source"] and options in each[OPTIONS])
        value = row[SPEED].split()
        step_ns = float(value[0]) * 1e6 if value[1] == "ms" else tokens / float(value[0]) * 1e9
        steps.append((name, job, step_ns, ("h100-sxm", TITAN[1])))
    for job, speed in A100_SPEEDS.items():
        steps.append((f"64 A100, {job}", job, _tokens(job) / speed * 1e9, A100))
    first = terms_of(FIRST_ROW, program, measured_ns).measured[0]
    first = msgspec.structs.replace(first, device=device(TITAN[0]))
    inside = [0, 0]
    for name, job, step_ns, machine in steps:
        cells = []
        for at, measured in enumerate(((), (first,))):
            terms = Terms(device=device(machine[0]), links=links(machine[1]), measured=measured)
            found = price_program(program(job), terms)[0].step
            if found is None:
                cells.append("no answer")
                continue
            inside[at] += found.low_ns <= step_ns <= found.high_ns
            where = "" if found.low_ns <= step_ns <= found.high_ns else ", outside"
            half = (found.high_ns - found.low_ns) / (found.high_ns + found.low_ns)
            cells.append(f"{found.low_ns / 1e9:.2f} .. {found.high_ns / 1e9:.2f} ({half:.0%}){where}")
        lines.append(f"| {name} | {step_ns / 1e9:.2f} | {' | '.join(cells)} |")
    lines += ["", f"Inside the range: {inside[0]} and {inside[1]} of {len(steps)}. In brackets the half-width."]
    return "\n".join(lines)


def tables(folder: Path) -> str:
    """Return all tables as Markdown; dry runs are kept in `folder`."""
    file = DATA / "measured" / "points.csv"
    if not file.exists():
        raise SystemExit(f"{file}: not there; name the folder of public inputs in OVERLAPSCOPE_DATA")
    with file.open(newline="") as opened:
        points = list(csv.DictReader(opened))
    measured_ns = {each.name: published_ns(each, points) for each in ROWS}
    program = programs(folder)
    parts = [
        "## A measured row for each recipe, and one with async TP",
        row_table(predict(A_ROW_EACH, program, measured_ns), program, measured_ns),
        "## The first row alone",
        row_table(predict(FIRST_ROW, program, measured_ns), program, measured_ns),
        "## On and off",
        pair_table(program, measured_ns),
        "## On another device: a range",
        other_devices(program, measured_ns, points),
    ]
    return "\n\n".join(parts) + "\n"
