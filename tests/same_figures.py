"""Compare the figures of two versions of the code: `python -m tests.same_figures save|compare FOLDER [INPUT...]`.

`save` runs analyze, compare, gate, whatif and advise with --json over the public inputs, the project's own traces and
INPUT, and keeps what they print below FOLDER; `compare` runs them again and reports every difference but words: texts
with a space, and paths. Run it before and after a change that is to move no figure. The exit code is 1 for a
difference.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("OVERLAPSCOPE_DATA", ROOT.parent / "shared" / "data"))
MOST_SHOWN = 20


def commands(extra: list[str]) -> dict[str, list[str]]:
    """Return every command by a name of its own: each file, each folder, each pair of runs."""
    base, regressed = str(ROOT / "traces" / "baseline"), str(ROOT / "traces" / "regressed")
    files = sorted(path for path in DATA.rglob("*") if path.is_file() and path.name != "SOURCES.md")
    folders = sorted({path.parent for path in files if path.parent != DATA})
    inputs = [base, regressed, *map(str, files), *map(str, folders), *extra]
    found = {f"analyze {each}": ["analyze", each, "--json"] for each in inputs}
    runs = [base, regressed, *map(str, folders), *extra]
    found |= {f"{verb} {run}": [verb, run, "--json"] for verb in ("whatif", "advise") for run in runs}
    pairs = [(base, regressed), (regressed, base), *itertools.pairwise(extra)]
    found |= {f"{verb} {a} {b}": [verb, a, b, "--json"] for verb in ("compare", "gate") for a, b in pairs}
    return {name.replace(f"{ROOT}{os.sep}", ""): words for name, words in found.items()}


def answer(words: list[str]) -> Any:
    """Return what one command prints and how it ends, without what it says on stderr."""
    done = subprocess.run([sys.executable, "-m", "overlapscope", *words], capture_output=True, text=True, check=False)
    try:
        return {"exit": done.returncode, "document": json.loads(done.stdout)}
    except ValueError:
        return {"exit": done.returncode, "document": None}


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield where two documents differ in more than words."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key not in before or key not in after:
                yield f"{place}.{key}: {'added' if key in after else 'gone'}"
            else:
                yield from differences(before[key], after[key], f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{place}: {len(before)} entries, now {len(after)}"
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(before, str) and isinstance(after, str):
        if before != after and not any(mark in before + after for mark in " /"):
            yield f"{place}: {before!r}, now {after!r}"
    elif type(before) is not type(after) or before != after:
        yield f"{place}: {str(before)[:60]}, now {str(after)[:60]}"


def main(verb: str, folder: Path, extra: list[str]) -> int:
    """Save what all commands answer, or compare it with what was saved."""
    chosen = commands(extra)
    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(chosen, pool.map(answer, chosen.values()), strict=True))
    kept = folder / "figures.json"
    if verb == "save":
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(answers), encoding="utf-8")
        print(f"{len(answers)} answers kept in {kept}")
        return 0
    before = json.loads(kept.read_text(encoding="utf-8"))
    different = 0
    for name in sorted(before.keys() & answers.keys()):
        found = list(differences(before[name], answers[name]))
        different += bool(found)
        for line in found[:MOST_SHOWN]:
            print(f"{name}: {line}")
    print(f"{len(before.keys() & answers.keys())} answers compared, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
