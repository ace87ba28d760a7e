"""The line of the user's code that is named."""

from pathlib import Path

from overlapscope.dry_run.source_lines import line_of_caller

ASKS = "def ask(asked):\n    return asked()\n"


def test_two_files_of_the_same_code_keep_their_names(tmp_path: Path) -> None:
    found = []
    for name in ("base.py", "candidate.py"):
        known: dict[str, object] = {}
        exec(compile(ASKS, str(tmp_path / name), "exec"), known)
        found.append(known["ask"](line_of_caller))
    assert found == ["base.py:2", "candidate.py:2"]
