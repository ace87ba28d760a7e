"""Warnings on stderr: one line for each file, and one for all where many have the same."""

import pytest

from overlapscope.cli.arguments import MANY_ALIKE, warnings_of
from overlapscope.timeline.run import Source


@pytest.mark.parametrize("files", [MANY_ALIKE - 1, MANY_ALIKE])
def test_a_warning_of_many_files_is_printed_once(files: int) -> None:
    own = [Source(path=f"{at}.json", warnings=("sizes are missing", f"number {at}")) for at in range(files)]
    lines = warnings_of("analyze", own).splitlines()
    of_all = [each for each in lines if "sizes are missing" in each]
    if files < MANY_ALIKE:
        assert of_all == [f"overlapscope analyze: warning: {at}.json: sizes are missing" for at in range(files)]
    else:
        assert of_all == [f"overlapscope analyze: warning: 0.json: sizes are missing (and {files - 1} more files)"]
    assert len(lines) == len(of_all) + files
