"""Read the metadata of a Kineto trace, before and after its events: rank, world size, groups, time base, versions."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import astuple

from overlapscope.ingest.build.collective_args import parse_count, parse_ranks
from overlapscope.ingest.formats.kineto.transfers import Transfer, parse_transfers
from overlapscope.timeline.run import MAX_RANKS, Group

MAX_REASON_CHARACTERS = 500


class _Fields(msgspec.Struct, gc=False):
    """The keys that are read; all others are skipped."""

    base_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    cuda_runtime: Any = msgspec.field(default=None, name="cuda_runtime_version")
    cuda_driver: Any = msgspec.field(default=None, name="cuda_driver_version")
    hip_runtime: Any = msgspec.field(default=None, name="hip_runtime_version")
    torch: Any = msgspec.field(default=None, name="torch_version")
    host: Any = msgspec.field(default=None, name="host_name")
    shapes: Any = msgspec.field(default=None, name="record_shapes")
    trigger: Any = msgspec.field(default=None, name="overlapscope_trigger")
    transfers: Any = msgspec.field(default=None, name="overlapscope_transfers")


class TraceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata that could be read; None where the trace does not state it."""

    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    groups: tuple[Group, ...] = ()
    fingerprint: Mapping[str, str | int | None] = {}
    host: str | None = None
    has_shapes: bool | None = None
    """True if operations were recorded with the shapes of their inputs."""
    reason: str | None = None
    """Why a running job recorded this trace, where a trigger of ours did."""
    transfers: tuple[Transfer, ...] = ()
    """Of a communication hook, where a recording of ours has them."""
    warnings: tuple[str, ...] = ()


def read_metadata(head: bytes, tail: bytes, *, is_array: bool) -> TraceMetadata:
    """Read the text before and after the event array; each is repaired, or left out with a warning, on its own."""
    if is_array:
        return TraceMetadata()
    warnings: list[str] = []
    front = _decode(head + b"]}", "before", warnings)
    rest = tail.lstrip(b" \t\r\n,")
    back = _decode(b"{" + rest, "after", warnings) if rest.strip(b" \t\r\n}") else _Fields()
    merged = _Fields(*(b if b is not None else a for a, b in zip(astuple(front), astuple(back), strict=True)))
    info = merged.distributed if isinstance(merged.distributed, dict) else {}
    groups = _groups(info.get("pg_config"))
    rank, world_size = parse_count(info.get("rank")), parse_count(info.get("world_size"))
    if max(rank or 0, world_size or 0) > MAX_RANKS:
        warnings.append(f"rank {rank} of {world_size} is impossible; left out")
        rank = world_size = None
    base_ns = parse_count(merged.base_ns)
    if base_ns is not None and base_ns >= 2**61:
        base_ns = None
    if merged.base_ns is not None and base_ns is None:
        warnings.append(f"baseTimeNanoseconds is not a possible time ({str(merged.base_ns)[:40]!r}); taken as 0")
    return TraceMetadata(
        base_ns=base_ns or 0,
        rank=rank,
        world_size=world_size,
        groups=groups,
        fingerprint=_fingerprint(merged, info),
        host=merged.host if isinstance(merged.host, str) else None,
        has_shapes=bool(merged.shapes) or None,
        reason=_reason(merged.trigger),
        transfers=_transfers(merged.transfers, warnings),
        warnings=tuple(warnings),
    )


def _reason(trigger: Any) -> str | None:
    reason = trigger.get("reason") if isinstance(trigger, dict) else None
    return reason[:MAX_REASON_CHARACTERS] if isinstance(reason, str) else None


def _transfers(value: Any, warnings: list[str]) -> tuple[Transfer, ...]:
    try:
        return parse_transfers(value or ())
    except msgspec.ValidationError as error:
        warnings.append(f"overlapscope_transfers could not be read ({error}); left out")
        return ()


def _decode(text: bytes, where: str, warnings: list[str]) -> _Fields:
    for attempt in _as_it_is_and_mended(text):
        try:
            return msgspec.json.decode(attempt, type=_Fields)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    warnings.append(f"the metadata {where} the events could not be read")
    return _Fields()


def _as_it_is_and_mended(text: bytes) -> Iterator[bytes]:
    yield text
    from overlapscope.ingest.parsing.json_repair import repair_object  # noqa: PLC0415 - few traces are damaged

    yield repair_object(text)


def _groups(config: object) -> tuple[Group, ...]:
    if not isinstance(config, list):
        return ()
    groups = []
    for each in config:
        if not isinstance(each, dict) or each.get("pg_name") is None:
            continue
        ranks, cut = parse_ranks(each.get("ranks"))
        groups.append(
            Group(
                name=str(each["pg_name"]),
                description=str(each["pg_desc"]) if each.get("pg_desc") is not None else None,
                size=parse_count(each.get("pg_size")),
                ranks=ranks if ranks and not cut else None,
            )
        )
    return tuple(groups)


def _fingerprint(fields: _Fields, info: dict[str, Any]) -> dict[str, str | int | None]:
    listed = fields.devices if isinstance(fields.devices, list) else []
    devices = [each.get("name") for each in listed if isinstance(each, dict)]
    known = {
        "backend": info.get("backend"),
        "nccl_version": info.get("nccl_version"),
        "device": next((name for name in devices if isinstance(name, str)), None),
        "torch_version": fields.torch,
        "cuda_runtime_version": fields.cuda_runtime,
        "cuda_driver_version": fields.cuda_driver,
        "hip_runtime_version": fields.hip_runtime,
    }
    return {key: value for key, value in known.items() if isinstance(value, (str, int)) and value != "unknown"}
