"""Read the gate's policy and its noise floor from their files."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.gate.calibrate import NoiseFloor
    from overlapscope.gate.policy import Policy

PYPROJECT: Final = "pyproject.toml"
MAX_BYTES: Final = 16 * 2**20


def read_policy(path: Path | None) -> "Policy":
    """Return the policy of a TOML file, or of a pyproject.toml's `[tool.overlapscope.gate]`.

    Without a path, the pyproject.toml of the current folder is used if it has that table, else the defaults. Raises
    UsageError, naming the file and the key.
    """
    from overlapscope.gate.policy import Policy, policy_of  # noqa: PLC0415 - keeps --help light

    if path is None and not Path(PYPROJECT).is_file():
        return Policy()
    found = path or Path(PYPROJECT)
    try:
        policy = policy_of(
            _gate_table(_toml(found), named=path is not None) if found.name == PYPROJECT else _toml(found)
        )
    except UsageError as error:
        raise UsageError(f"{found}: {error}") from error
    return policy if policy.floor is None else replace(policy, floor=str(found.parent / policy.floor))


def _gate_table(document: dict[str, Any], *, named: bool) -> dict[str, Any]:
    """Return `[tool.overlapscope.gate]`. Raises UsageError for any table beside it: a typo would go unnoticed."""
    from overlapscope.gate.policy import unknown_name_message  # noqa: PLC0415

    ours = _table(_table(document, "tool"), "overlapscope")
    wrong = [key for key in ours if key != "gate"]
    if wrong:
        raise UsageError(f"tool.overlapscope: {unknown_name_message('table', wrong[0], ['gate'])}")
    if named and "gate" not in ours:
        raise UsageError("it has no table [tool.overlapscope.gate]")
    return _table(ours, "gate")


def read_floor(path: Path) -> "NoiseFloor":
    """Return the noise floor that `gate --calibrate` wrote. Raises UsageError for any other file."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.gate.calibrate import NoiseFloor  # noqa: PLC0415

    try:
        return msgspec.json.decode(_content(path), type=NoiseFloor)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: not a noise floor written by `gate --calibrate RUNS -o FILE`: {error}") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_content(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"not TOML: {error}") from error


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"is larger than {MAX_BYTES // 2**20} MiB")
    return content


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"{key} must be a table")
    return value
