"""How many examples Hypothesis draws: a fifth of what a test asks for where each change is tested, all in long runs."""

import os
from typing import Any, Final

from hypothesis import settings

SHARE: Final = {"explore": 1.0, "quick": 0.1}
"""Of the profiles in which not a fifth is drawn: `make test-long`, and a second Python."""


def examples(number: int, **others: Any) -> settings:
    """Return Hypothesis' settings for at most so many examples; `others` are further settings."""
    share = SHARE.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 1 / 5)
    return settings(max_examples=max(round(number * share), 1), **others)
