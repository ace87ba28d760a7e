"""State in one line why a step cannot run without a device, and what to do about it."""

import re
import traceback
from typing import Final

from overlapscope.dry_run.recorder import NO_DEVICE
from overlapscope.dry_run.source_lines import line_of_traceback
from overlapscope.errors import InputError, OverlapScopeError

_DEVICE: Final = re.compile(r"cuda|nvidia|\bhip\b|\bxpu\b|\baccelerator\b|dummy base class", re.IGNORECASE)
_MESH: Final = re.compile(r"\bmesh\b.*\b(world|ranks)\b", re.IGNORECASE)
_MOST_SHOWN: Final = 200


def explained(error: Exception | SystemExit) -> OverlapScopeError:
    """Return the error to show for what the user's code, or torch under it, raised."""
    if isinstance(error, OverlapScopeError):
        return error
    line = line_of_traceback(error.__traceback__) or "torch"
    kind, text = type(error).__name__, " ".join(str(error).split())[:_MOST_SHOWN]
    if not text:  # an assertion without words
        text = traceback.extract_tb(error.__traceback__)[-1].line or ""
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedFakeTensorException"):
        return InputError(
            f"{line}: the result of {text} depends on data, which a dry run does not have: use fixed shapes (a "
            "capacity for experts, padding), or leave this part out of the step"
        )
    if isinstance(error, ModuleNotFoundError):
        return InputError(f"{line}: {missing_package(error)}")
    if _MESH.search(text):
        return InputError(
            f"{line}: the mesh does not fit the world ({text}): choose a world that is the product of its dimensions"
        )
    if _DEVICE.search(text):
        remedy = "shard with fully_shard (FSDP2)" if text.startswith("FSDP") else NO_DEVICE
        return InputError(f"{line}: the code needs a device ({text}): {remedy}")
    remedy = "; tensors have no values to write: leave saving out of the step" if "pickle" in text else ""
    return InputError(f"{line}: the step cannot run as a dry run: {kind}: {text}{remedy}")


def missing_package(error: ModuleNotFoundError) -> str:
    """Return what to say of a package that the user's code imports; its name in a registry may be another."""
    package = (error.name or "").split(".")[0]
    return f"the package {package} is not installed: install what the job itself needs where the dry run runs"
