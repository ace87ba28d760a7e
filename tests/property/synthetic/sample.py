"""A dozen drawn jobs, kept with their faults planted, since planting takes longer than all else.

`python -m tests.property.synthetic.sample` draws them again.
"""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.property.synthetic.draw import Drawn, faulty, healthy
from tests.property.synthetic.job import Fault, Job, Layout

FILE: Final = Path(__file__).parent / "sample.json"
FAULTY: Final = (84, 109, 26, 15, 64, 65, 30, 68, 69, 46, 11)
HEALTHY: Final = (15, 30, 54)
"""Seeds of jobs that are quickly simulated, one of each kind of fault that such a job can show, and healthy ones."""


def load() -> list[Drawn]:
    """Read them."""
    return [_drawn(each) for each in json.loads(FILE.read_text(encoding="utf-8"))]


def _drawn(kept: dict[str, Any]) -> Drawn:
    fields = {**kept["job"]}
    fault = Fault(**{**fields["fault"], "culprits": tuple(fields["fault"]["culprits"])})
    job = Job(**{**fields, "layout": Layout(**fields["layout"]), "fault": fault, "recorded": tuple(fields["recorded"])})
    return Drawn(job=job, share=kept["share"], recorded_culprits=tuple(kept["recorded_culprits"]))


def main() -> None:
    """Draw and keep them."""
    drawn = [*map(faulty, FAULTY), *map(healthy, HEALTHY)]
    FILE.write_text(json.dumps(msgspec.to_builtins(drawn, enc_hook=float), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
