"""What NCCL attaches to its NVTX ranges, as Nsight Systems exports it with --include-blobs=true.

A blob is a header (domain, schema, size of the payload, size of the whole) and the payload, whose fields the tables
NVTX_PAYLOAD_SCHEMAS and NVTX_PAYLOAD_SCHEMA_ENTRIES describe. Nothing is read of a blob in which sizes, domain and
schema do not agree with each other and with those tables. The layout is that which the project nsys-ai describes
(measured with Nsight 2026); the fields' names are NCCL's own (src/include/nvtx.h of NCCL).
"""

import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from overlapscope.ingest.api_ranges import Payload
from overlapscope.timeline.volume import possible

_HEADER: Final = struct.Struct("<IIIIQQ")
_INT, _UINT64, _SIZE = 5, 18, 22
"""Entry types of NVTX: int, uint64_t, size_t."""
_FORMAT: Final = {_INT: struct.Struct("<i"), _UINT64: struct.Struct("<Q"), _SIZE: struct.Struct("<Q")}
COMMUNICATOR, MESSAGE, MEMBERS, MEMBER, DEVICE = (
    "NCCL communicator ID",
    "Message size [bytes]",
    "No. of ranks",
    "Rank",
    "CUDA device",
)
MAX_BLOB: Final = 4096


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """A payload's size, None where it is not told, and (offset, type) of each of its fields by name."""

    size: int | None
    fields: Mapping[str, tuple[int, int]]


def decode(blob: bytes, domain: int, schemas: Mapping[tuple[int, int], Schema]) -> Payload | None:
    """Give what a blob of a domain tells; None when anything about it does not agree. `schemas` by (domain, id)."""
    if not _HEADER.size <= len(blob) <= MAX_BLOB:
        return None
    of_domain, _, schema_id, _, size, whole = _HEADER.unpack_from(blob)
    schema = schemas.get((domain, schema_id))
    if schema is None or of_domain != domain or whole != len(blob) or size != len(blob) - _HEADER.size:
        return None
    if schema.size not in (None, size):
        return None
    values: dict[str, int] = {}
    for name, (offset, kind) in schema.fields.items():
        layout = _FORMAT.get(kind)
        if layout is None:
            continue
        if offset < 0 or offset + layout.size > size:
            return None
        values[name] = layout.unpack_from(blob, _HEADER.size + offset)[0]
    communicator, members = values.get(COMMUNICATOR), values.get(MEMBERS)
    return Payload(
        group=f"0x{communicator:x}" if communicator else None,
        members=members if members is not None and members > 0 else None,
        member=values.get(MEMBER),
        device=values.get(DEVICE),
        message_bytes=possible(values[MESSAGE]) if MESSAGE in values else None,
    )
