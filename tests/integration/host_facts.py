"""What the trainings inside real frameworks and their tests agree on."""

from typing import Final

MODES: Final = ("without", "events", "trace")
"""Each host trains without us and in both modes, in one process: importing it costs more than training."""
STEPS: Final = 7
WARMUP: Final = 2
ACCUMULATES: Final = 2
"""Batches of an optimizer step."""
BATCH: Final = 4
TOKENS: Final = 32
"""Tokens of a sample."""
WIDTH: Final = 64
