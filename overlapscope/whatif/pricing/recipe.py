"""What of a job a dry run does not show, because it needs a device: compiled kernels, float8 products, async TP."""

from typing import Final

import msgspec

from overlapscope.errors import UsageError

FLOAT8: Final = ("tensorwise", "rowwise")
_SYNTAX: Final = "compile[=MODULE+MODULE], float8=tensorwise|rowwise, float8-except=MODULE+MODULE, async-tp"


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How the job runs what the dry run recorded."""

    compiled: tuple[str, ...] | None = None
    """Modules whose memory-bound operations a compiler joins, by the beginning of their names; () is all, None none."""
    float8: str | None = None
    """Scaling of float8 products; None without."""
    float8_except: tuple[str, ...] = ("output", "lm_head", "head")
    """Modules whose products keep their dtype."""
    async_tp: bool = False
    """Whether tensor-parallel collectives are split and overlapped with the products beside them."""

    def __str__(self) -> str:
        parts = []
        if self.compiled is not None:
            parts.append("=".join(["compile", *filter(None, ["+".join(self.compiled)])]))
        if self.float8:
            parts.append(f"float8={self.float8}")
        if self.async_tp:
            parts.append("async-tp")
        return ",".join(parts) or "eager"


def parse_recipe(text: str) -> Recipe:
    """Return the recipe of an option such as `compile=layers,float8=tensorwise`. Raises UsageError."""
    values: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        names = tuple(filter(None, value.split("+")))
        if key == "compile":
            values["compiled"] = names
        elif key == "float8" and value in FLOAT8:
            values["float8"] = value
        elif key == "float8-except" and names:
            values["float8_except"] = names
        elif part == "async-tp":
            values["async_tp"] = True
        elif part != "eager":
            raise UsageError(f"recipe {part!r}: must be of {_SYNTAX}")
    return Recipe(**values)  # type: ignore[arg-type] # each value has the type of its key
