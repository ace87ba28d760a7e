"""Run one measuring function: `python -m overlapscope.gpu_check MODULE:FUNCTION FOLDER`."""

import sys
from importlib import import_module
from pathlib import Path

from overlapscope.gpu_check.measurements import Measurements, NotRunError


def main() -> int:
    """Call the function with its measurements; what the machine does not offer is written down, not raised."""
    module, _, function = sys.argv[1].partition(":")
    measurements = Measurements(Path(sys.argv[2]))
    try:
        getattr(import_module(module), function)(measurements)
    except NotRunError as reason:
        measurements.not_run(str(reason))
    else:
        measurements.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
