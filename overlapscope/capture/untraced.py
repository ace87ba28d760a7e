"""Keeping torch's compiler out of our own functions: what it traced would split the user's graphs and be compiled anew.

A hook that stands inside a compiled region is traced with it, and has to ask `torch.compiler.is_compiling()` first: the
compiler knows the answer while it traces, and nothing of the hook is left. All our other functions run between graphs,
where the compiler takes a look at every frame.
"""

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

PACKAGE = "overlapscope.capture"


def leave_untraced() -> None:
    """Make the compiler skip the frames of this package, where it has been loaded; inlining is not affected."""
    if "torch._dynamo" not in sys.modules:
        return
    # Where all versions have it, wherever they define it (torch._C in 2.4, torch._dynamo.eval_frame in 2.13).
    from torch._dynamo.convert_frame import skip_code  # noqa: PLC0415 - capture is the one room that uses torch

    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            for code in _codes(vars(module), name):
                skip_code(code)


def _codes(members: dict[str, Any], module: str) -> Iterator[CodeType]:
    """Give the code of the functions that a module or class defines, and of those inside them."""
    for value in list(members.values()):
        inner = getattr(value, "__func__", getattr(value, "fget", getattr(value, "__wrapped__", value)))
        if isinstance(inner, FunctionType) and inner.__module__ == module:
            yield from _nested(inner.__code__)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(dict(vars(value)), module)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
