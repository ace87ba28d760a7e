"""Record the sample runs of this folder anew: two real DDP processes over gloo.

    python traces/record.py

Writes `gloo_ddp/rank0.pt.trace.json.gz`, `rank1...` and `manifest.json`. Needs torch. What names the recording machine
(host name, file path) is replaced.
"""

import gzip
import hashlib
import json
import re
import tempfile
from pathlib import Path

import torch

from overlapscope.capture.demo import WORLD_SIZE, train_and_record

HERE = Path(__file__).parent


def main() -> None:
    """Record, clean, describe."""
    target = HERE / "gloo_ddp"
    target.mkdir(exist_ok=True)
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        train_and_record(Path(folder))
        for rank in range(WORLD_SIZE):
            name = f"rank{rank}.pt.trace.json.gz"
            text = gzip.decompress((Path(folder) / name).read_bytes())
            text = re.sub(rb'("traceName":\s*)"[^"]*"', rb'\1"%s"' % name.encode(), text)
            text = re.sub(rb'("host_name":\s*)"[^"]*"', rb'\1"host"', text)
            content = gzip.compress(text, mtime=0)
            (target / name).write_bytes(content)
            files[f"gloo_ddp/{name}"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "gloo_ddp": "2 CPU ranks, DistributedDataParallel over gloo, 8 layers of 768 x 768, buckets of 4 MiB, 4 steps",
        "torch": torch.__version__,
        "recorded_by": "traces/record.py",
        "files": files,
    }
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
