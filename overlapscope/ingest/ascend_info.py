"""Read `profiler_info_N.json` and `profiler_metadata.json`: versions, world size and groups of an Ascend profile.

Writer: torch_npu `profiler/profiler_interface.py` and `profiler/_add_metadata.py`; Megatron adds its groups.
"""

from pathlib import Path
from typing import Any

from overlapscope.display_path import shown
from overlapscope.ingest.ascend_folder import noted_rank, rank_of
from overlapscope.ingest.collective_args import count, parse_ranks
from overlapscope.ingest.json_file import read_json
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Group, Source

_VERSIONS = ("torch_npu_version", "cann_version")


def read_info(path: Path, context: ReadContext) -> Reading:
    """Read either file. Raises InputError when it is not whole JSON."""
    content, stream = read_json(path, context.max_bytes, context.progress)
    told = content if isinstance(content, dict) else {}
    job = told.get("distributed_args")
    world_size = count(job.get("world_size")) if isinstance(job, dict) else None
    rank = noted_rank(path)
    rank = rank_of(path) if rank is None else rank
    return Reading(
        world_size=world_size if world_size and world_size <= MAX_RANKS else None,
        groups=_groups(told.get("parallel_group_info")),
        fingerprint={key: told[key] for key in _VERSIONS if isinstance(told.get(key), str)},
        source=Source(
            path=shown(path),
            ranks=() if rank == UNKNOWN_RANK else (rank,),
            events=1,
            warnings=tuple(stream.warnings),
        ),
    )


def _groups(config: Any) -> tuple[Group, ...]:
    groups = []
    for name, told in config.items() if isinstance(config, dict) else ():
        if isinstance(told, dict):
            ranks, _ = parse_ranks(told.get("global_ranks"))
            description = told.get("group_name")
            groups.append(
                Group(
                    name=name,
                    description=description if isinstance(description, str) else None,
                    size=len(ranks) if ranks else None,
                    ranks=ranks or None,
                )
            )
    return tuple(groups)
