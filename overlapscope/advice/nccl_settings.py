"""Code and variables for NCCL settings: per communicator, environment by version, and a file for its example tuner.

Versions as in NCCL's release notes and sources: `ncclConfig_t.maxCTAs` and `NCCL_MAX_CTAS` since 2.17, functions in
`NCCL_ALGO` since 2.24, the example tuner's CSV since 2.27.7. torch has `ProcessGroupNCCL.Options().config` (`min_ctas`,
`max_ctas`, `cga_cluster_size`, `net_name`, `blocking`) since 2.1, where it is built with NCCL 2.17 or later.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run

CTAS_SINCE: Final = (2, 17)
FUNCTIONS_SINCE: Final = (2, 24)
TUNER_SINCE: Final = (2, 27, 7)
TORCH_CONFIG_SINCE: Final = (2, 1)
WHOLE: Final = 2**64 - 1
"""Upper size limit in the tuner's file: with the documented 4294967295 no larger size would match."""
LATENCY_BYTES: Final = 64 << 10
"""Smaller calls use the protocol of least latency in a tuner's file."""
TUNED: Final = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """The communication library of a run; a version is () where it is not recorded."""

    version: tuple[int, ...] = ()
    torch: tuple[int, ...] = ()
    is_rccl: bool = False

    @classmethod
    def of(cls, run: Run) -> "Library | None":
        """Return the library of a run; None where nothing shows that it was NCCL or RCCL."""
        reported = [run.facts.name(code) or "" for code in set(run.facts.members.library.tolist())]
        known = run.fingerprint
        texts = [*reported, str(known.get("nccl_version") or "")]
        if known.get("backend") != "nccl" and not any(texts):
            return None
        rocm = known.get("hip_runtime_version") is not None or any("RCCL" in each for each in reported)
        version = next((found for each in texts if (found := version_of(each))), ())
        return cls(version=version, torch=version_of(str(known.get("torch_version") or "")), is_rccl=rocm)


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of the first version in a text; () where there is none."""
    found = _VERSION.search(text)
    return tuple(int(each or 0) for each in found.groups()) if found else ()


def channels_of(run: Run) -> int | None:
    """Return the largest number of channels recorded for a communicator or a call; None where none is recorded."""
    recorded = [int(run.facts.members.collective_channels.max(initial=NONE))]
    recorded += [int(each.collectives.channels.max(initial=NONE)) for each in run.ranks.values()]
    most = max(recorded)
    return most if most > 0 else None


def fewer_channels(library: Library, channels: int) -> dict[str, str]:
    """Return how to limit collectives to `channels` channels (blocks on the device, hence multiprocessors)."""
    return _channels(library, channels, "max", f"{{min_ctas: 1, max_ctas: {channels}, cga_cluster_size: 2}}")


def more_channels(library: Library, channels: int) -> dict[str, str]:
    """Return how to give collectives at least `channels` channels."""
    return _channels(library, channels, "min", f"{{min_ctas: {channels}, max_ctas: {channels}, cga_cluster_size: 2}}")


def _channels(library: Library, channels: int, bound: str, megatron: str) -> dict[str, str]:
    found = {}
    ctas = not library.is_rccl and (not library.version or library.version >= CTAS_SINCE)
    if ctas and (not library.torch or library.torch >= TORCH_CONFIG_SINCE):
        found["nccl_communicator"] = (
            "options = torch.distributed.ProcessGroupNCCL.Options()\n"
            f"options.config.{bound}_ctas = {channels}\n"
            "group = torch.distributed.new_group(ranks, pg_options=options)  # for this group only"
        )
    if ctas:
        found["megatron"] = (
            f"--nccl-communicator-config-path nccl.yaml  # a setting for each group; in nccl.yaml:\ndp: {megatron}"
        )
    older_name = f"NCCL_{bound.upper()}_NCHANNELS"
    name = f"NCCL_{bound.upper()}_CTAS" if ctas else older_name
    older = f"; before NCCL 2.17: {older_name}" if ctas and not library.version else ""
    found["nccl_variables"] = f"{name}={channels}  # for all communicators of the process{older}"
    return found


def without_algorithm(library: Library, op: str, algorithm: str, channels: int | None) -> dict[str, str]:
    """Return how to exclude an algorithm for one operation; NCCL then chooses the best of the others."""
    name = algorithm.replace("_", "").lower()  # the log's NVLS_TREE is the variable's nvlstree
    if library.version and library.version >= FUNCTIONS_SINCE:
        setting = f'NCCL_ALGO="{_function(op)}:^{name}"'
    else:
        setting = f"NCCL_ALGO=^{name}  # for all operations: before 2.24 one operation cannot be selected"
    found = {"nccl_variables": setting}
    if library.version >= TUNER_SINCE and channels and not library.is_rccl:
        other = "tree" if name == "ring" else "ring"
        found["nccl_tuner"] = (
            "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=nccl_tuner.conf  # with the content:\n"
            + "\n".join(tuner_lines(_function(op), other, channels))
        )
    return found


def tuner_lines(function: str, algorithm: str, channels: int) -> Sequence[str]:
    """Return the lines of a file for NCCL's example tuner: `function` uses `algorithm`, all others use rings.

    The tuner uses one channel for calls that no line matches, and where a line leaves the channels to NCCL. So every
    size of every operation has a line with its channels. LL128 is never used: it corrupts data where it is not
    supported.
    """
    lines = ["# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"]
    for each in TUNED:
        name = algorithm if each == function else "ring"
        lines.append(f"{each},0,{LATENCY_BYTES - 1},{name},ll,{channels},-1,-1")
        lines.append(f"{each},{LATENCY_BYTES},{WHOLE},{name},simple,{channels},-1,-1")
    return lines


def _function(op: str) -> str:
    return op.replace("_", "")
