"""Names of NVTX and roctx ranges: what torch adds to them is cut off, operations are told from annotations.

`torch.autograd.profiler.emit_nvtx` writes `aten::mul, seq = 12, op_id = 990346, sizes = [[8, 8]]`: a name of its own
for each call. Kept whole, a long recording would hold millions of names.
"""

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.classify import RECORD
from overlapscope.timeline.names import NameTable

_ADDED: Final = re.compile(r", (?:stashed[ _])?(?:seq|op_id|sizes|input_op_ids|trace_id) = .*", re.DOTALL)
_SEQUENCE: Final = re.compile(r", (?:stashed[ _])?seq = ")
_OPERATION: Final = re.compile(rf"(?:[a-z_][a-z0-9_]*::|nccl[A-Z]|{RECORD}$)")
"""Operations of torch and calls of NCCL; `FSDP::pre_forward` and the like are annotations."""


class RangeNames:
    """Turns texts of ranges into codes of names, and remembers which are operations."""

    def __init__(self, names: NameTable) -> None:
        self._names = names
        self._operations: set[int] = set()

    def code(self, text: str) -> int:
        """Give the code of a range's name."""
        name = _ADDED.sub("", text) if ", " in text else text
        code = self._names.code(name)
        # Only what autograd recorded as an operation has a sequence number.
        if code not in self._operations and (_OPERATION.match(name) or _SEQUENCE.search(text)):
            self._operations.add(code)
        return code

    def annotations(self, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Tell for each code whether it names an annotation."""
        return ~np.isin(codes, list(self._operations))
