"""Record the sample runs of this folder anew: two real DDP processes over gloo, twice.

    python traces/record.py

`baseline/` has buckets of 4 MiB, `regressed/` one for everything; each is a run directory that keeps the profiler's
traces beside the columns. Writes `manifest.json`. Needs torch. What names the recording machine (host, process, file
path) is replaced.
"""

import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path

import torch

from overlapscope.cli.verbs.demo import train_and_record

HERE = Path(__file__).parent
RUNS = {
    "baseline": ("4", "6", "2 CPU ranks, DDP over gloo, 8 layers of 768 x 768, buckets of 4 MiB, 6 steps"),
    "regressed": ("1000", "6", "the same with one bucket for everything: its all-reduce begins when backward ends"),
}


def main() -> None:
    """Record, clean, describe."""
    files = {}
    for name, (bucket_mib, steps, _) in RUNS.items():
        run = HERE / name
        shutil.rmtree(run, ignore_errors=True)
        train_and_record(run, bucket_mib, steps)
        for path in sorted(run.rglob("*.json.gz")):
            text = gzip.decompress(path.read_bytes())
            text = re.sub(rb'("traceName":\s*)"[^"]*"', rb'\1"%s"' % path.name.encode(), text)
            text = re.sub(rb'("host_name":\s*)"[^"]*"', rb'\1"host"', text)
            path.write_bytes(gzip.compress(text, mtime=0))
        for path in sorted(run.rglob("rank.json")):
            entry = json.loads(path.read_text(encoding="utf-8"))
            entry["recorded"]["settings"] |= {"host": "host", "pid": 0}
            path.write_text(json.dumps(entry), encoding="utf-8")
        for path in sorted(run.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                listed = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                files[str(path.relative_to(HERE))] = listed
    manifest = {
        "runs": {name: words for name, (_, _, words) in RUNS.items()},
        "torch": torch.__version__,
        "recorded_by": "traces/record.py",
        "files": files,
    }
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
