"""What the source says below a field: attribute docstrings, which Python does not keep."""

import ast
import inspect
import sys
from functools import cache


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a class and of the classes of ours that it extends, on one line."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not each.__module__.startswith("overlapscope"):
            continue
        body = _classes(each.__module__)[each.__name__].body
        for statement, below in zip(body, [*body[1:], None], strict=True):
            if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
                continue
            said = below.value if isinstance(below, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                found[statement.target.id] = " ".join(said.value.split())
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
