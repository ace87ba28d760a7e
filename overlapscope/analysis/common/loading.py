"""Names of ranges and operations in which a batch is fetched."""

import re
from typing import Final

LOADS_DATA: Final = re.compile(
    r"DataLoader"
    r"|(?i:data_?load|load_?batch|fetch_?batch|next_?batch)"
    r"|^(?i:((get|next|load|fetch|read)[ _.(-]?)?(data|batch|batches)"
    r"([ _.-]?(load(er|ing)?|fetch(ing)?|wait(ing)?|time))?\)?"
    r"|load(er|ing)?|fetch(ing)?)$"
)
"""Searched for: torch's own, and names that users commonly choose; short ones are the whole name."""
