"""Find the function that builds a step: by the name of its module, or of its file."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from overlapscope.dry_run.failures import missing_package
from overlapscope.dry_run.source_lines import line_of_traceback
from overlapscope.errors import InputError, UsageError

_MODULE: Final = "overlapscope_dry_run_target"


def find_function(spec: str) -> Callable[..., Any]:
    """Return what `MODULE:FUNCTION` names, or `FILE.py:FUNCTION`; modules are also found from the current folder.

    The module is imported, which runs its code. Raises UsageError for another form or an unknown name, InputError
    where the import fails.
    """
    place, _, name = spec.rpartition(":")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{spec!r} is not MODULE:FUNCTION, such as train:build")
    found: Any = _imported(place)
    for part in name.split("."):
        if not hasattr(found, part):
            there = sorted(each for each, value in vars(found).items() if callable(value) and not each.startswith("_"))
            raise UsageError(f"{place} has no {name}; it has {', '.join(there[:8]) or 'no functions'}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{spec} is {type(found).__name__}, no function")
    return found  # type: ignore[no-any-return] # it was looked up by name


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a function can be called with these arguments; True where its signature is not known."""
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def _imported(place: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        if place.endswith(".py"):
            return _from_file(Path(place))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (place == missing or place.startswith(f"{missing}.")):
            raise UsageError(
                f"there is no module {place}, neither installed nor in the current folder: name a module, or FILE.py"
            ) from error
        raise InputError(f"{place}: {missing_package(error)}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, UsageError):
            raise
        line = line_of_traceback(error.__traceback__) or place
        if isinstance(error, SystemExit):
            raise InputError(
                f"{line}: the module ends the process as it is imported (SystemExit: {_short(error)}): parse arguments "
                'and train under if __name__ == "__main__"'
            ) from error
        raise InputError(f"{line}: the import fails: {type(error).__name__}: {_short(error)}") from error


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    return module


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
