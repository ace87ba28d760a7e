"""Files to measure on."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("OVERLAPSCOPE_DATA", HERE.parent.parent / "shared" / "data"))
CACHE = HERE / ".cache"
SIX_STEPS = SHARED / "kineto" / "a100_rank3of8_six_steps.json.gz"
MILLION = CACHE / "six_steps_ten_times.json"
EIGHT = CACHE / "eight_ranks"
REPEATS = 10
STEPS = 6


def million_events() -> Path:
    """Return the six-step trace ten times: times shifted, steps and correlations renumbered; 1,091,230 events."""
    _made(MILLION)
    return MILLION


def eight_ranks() -> list[Path]:
    """Return the six-step trace as eight ranks recorded it: one file each, no more than the rank changed."""
    _made(EIGHT)
    return sorted(EIGHT.iterdir())


def _made(place: Path) -> None:
    """Have inputs made by a process of their own: the peak memory that a benchmark reads begins with its parent's."""
    if not place.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.inputs", place.name], check=True, cwd=HERE.parent)


def _make_eight_ranks(folder: Path) -> None:
    source = gzip.decompress(SIX_STEPS.read_bytes())
    temporary = folder.with_suffix(".tmp")
    temporary.mkdir(parents=True, exist_ok=True)
    for rank in range(8):
        changed = re.sub(
            rb'("distributedInfo".{0,80}?"rank": )\d+', rb"\g<1>%d" % rank, source, count=1, flags=re.DOTALL
        )
        (temporary / f"rank{rank}.json").write_bytes(changed)
    temporary.rename(folder)


def _make_million_events(path: Path) -> None:
    CACHE.mkdir(exist_ok=True)
    trace = json.loads(gzip.decompress(SIX_STEPS.read_bytes()), strict=False)
    times = [event["ts"] for event in trace["traceEvents"] if event["ph"] == "X" and isinstance(event["pid"], int)]
    span = max(times) - min(times) + 2_000_000
    trace["traceEvents"] = [
        _shifted(event, repeat, span) for repeat in range(REPEATS) for event in trace["traceEvents"]
    ]
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(trace, indent=1), encoding="utf-8")
    temporary.rename(path)


def _shifted(event: dict[str, object], repeat: int, span: int) -> dict[str, object]:
    moved = dict(event)
    if isinstance(moved.get("ts"), int):
        moved["ts"] += repeat * span  # type: ignore[operator]
    if isinstance(moved.get("id"), int):
        moved["id"] += repeat * 10_000_000  # type: ignore[operator]
    args = moved.get("args")
    if isinstance(args, dict) and "correlation" in args:
        moved["args"] = {**args, "correlation": args["correlation"] + repeat * 10_000_000}
    found = re.fullmatch(r"ProfilerStep#(\d+)", str(moved["name"]))
    if found:
        moved["name"] = f"ProfilerStep#{int(found[1]) + STEPS * repeat}"
    return moved


if __name__ == "__main__":
    {MILLION.name: _make_million_events, EIGHT.name: _make_eight_ranks}[sys.argv[1]](CACHE / sys.argv[1])
