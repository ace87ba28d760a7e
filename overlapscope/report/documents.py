"""The types of all documents that the verbs give as JSON."""

from typing import Final

import msgspec

from overlapscope.analysis.analyze import Analysis
from overlapscope.analysis.compare import Comparison
from overlapscope.analysis.history import History
from overlapscope.analysis.scaling import Scaling
from overlapscope.gate.calibrate import NoiseFloor
from overlapscope.gate.verdict import Gate
from overlapscope.whatif.scenario import WhatIf

DOCUMENTS: Final[dict[str, type[msgspec.Struct]]] = {
    "analysis": Analysis,
    "comparison": Comparison,
    "whatif": WhatIf,
    "gate": Gate,
    "history": History,
    "scaling": Scaling,
    "floor": NoiseFloor,
}
"""Documents by the name in their `schema`: `overlapscope.NAME/1`."""
