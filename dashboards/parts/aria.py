"""What elements say to assistive technology."""

from typing import Any


def aria(**states: str) -> dict[str, Any]:
    """Give `aria-label="..."` and its like as keyword arguments: `html.Div(..., **aria(label="Figures"))`."""
    return {f"aria-{name}": value for name, value in states.items()}
