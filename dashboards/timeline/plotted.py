"""Numbers as plotly takes them: times in milliseconds from the run's begin, arrays as their bytes."""

from base64 import b64encode
from typing import Any

import numpy.typing as npt


def typed(values: npt.NDArray[Any]) -> dict[str, str]:
    """Give numbers as plotly reads them without parsing any: their bytes, little-endian."""
    told = {"dtype": {"uint8": "u1", "float64": "f8"}[str(values.dtype)], "bdata": b64encode(values.tobytes()).decode()}
    return told | ({"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {})


def axis_ms(ns: float) -> float:
    """Give a time on the axis, which is in milliseconds."""
    return float(ns) / 1e6
