"""Read the JSON form of a Chakra trace (`workload_graph`, mlcommons/chakra src/feeder/JSONNode.cpp) into calls."""

from pathlib import Path
from typing import Any

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.call_log import call_timeline
from overlapscope.ingest.chakra_calls import ChakraNode, calls_of, rank_in_name
from overlapscope.ingest.collective_args import count
from overlapscope.ingest.formats.chakra_graph import FORMAT
from overlapscope.ingest.json_file import read_json
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.timeline.run import MAX_RANKS, Source


def read_graph(path: Path, context: ReadContext) -> Reading:
    """Read one graph. Raises InputError when it holds no node."""
    content, stream = read_json(path, context)
    listed = content.get("workload_graph") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise InputError(f"{shown(path)}: holds no workload graph")
    nodes = [_node(each) for each in listed if isinstance(each, dict)]
    if not nodes:
        raise InputError(f"{shown(path)}: holds no node")
    calls = calls_of(nodes)
    devices = count(content.get("ngpus"))
    return Reading(
        timelines=(call_timeline(calls, shown(path), rank_in_name(path)),),
        world_size=devices if devices and devices <= MAX_RANKS else None,
        source=Source(
            path=shown(path),
            format=FORMAT,
            events=len(nodes),
            dropped=len(listed) - len(nodes),
            warnings=(*stream.warnings, *(() if calls else ("no node of it communicates",))),
        ),
    )


def _node(told: dict[str, Any]) -> ChakraNode:
    name = told.get("Name", told.get("name"))
    return ChakraNode(
        number=count(told.get("Id", told.get("id"))) or 0,
        name=name if isinstance(name, str) else "",
        sort=count(told.get("NodeType", told.get("type"))) or 0,
        attributes=told,
    )
