"""Say in one line why a step cannot run without a device, and what to do about it."""

import re
from typing import Final

from overlapscope.dry_run.source_lines import line_of_traceback
from overlapscope.errors import InputError, OverlapScopeError

_DEVICE: Final = re.compile(r"CUDA|NVIDIA|HIP|\bcuda\b|\bxpu\b|Torch not compiled|dummy base class", re.IGNORECASE)
_MOST_SHOWN: Final = 200


def explained(error: Exception) -> OverlapScopeError:
    """Return the error to show for what the user's code, or torch under it, raised."""
    if isinstance(error, OverlapScopeError):
        return error
    line = line_of_traceback(error.__traceback__) or "torch"
    kind, text = type(error).__name__, " ".join(str(error).split())[:_MOST_SHOWN]
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedFakeTensorException"):
        return InputError(
            f"{line}: the result of {text} depends on data, which a dry run does not have: use fixed shapes (a "
            "capacity for experts, padding), or leave this part out of the step"
        )
    if isinstance(error, ModuleNotFoundError):
        return InputError(f"{line}: the package {error.name} is not installed: pip install {error.name}")
    if re.search(r"\bmesh\b", text, re.IGNORECASE):
        return InputError(
            f"{line}: the mesh does not fit the world ({text}): choose a world that is the product of its dimensions"
        )
    if _DEVICE.search(text):
        return InputError(
            f"{line}: the code needs a device ({text}): create tensors and modules on the device that build is given"
        )
    remedy = "; tensors have no values to write: leave saving out of the step" if "pickle" in text else ""
    return InputError(f"{line}: the step cannot run as a dry run: {kind}: {text}{remedy}")
