"""The sections and keys of `WORKLOAD.toml`, checked before anything is computed.

An unknown key is an error that names the nearest known one; an impossible number is an error too.
"""

from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from overlapscope.errors import UsageError
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import MAX_RANKS
from overlapscope.whatif.workload.model import OPTIMIZER_TOUCHES

FORMULAS = ("ring", "double_binary_tree", "recursive_halving_doubling", "in_network", "torus", "hierarchical")
"""Formulas that have an all-reduce."""
MAX_ENTRIES = 5_000
"""Limit on parameters: several times as many as large models have."""
MAX_MODEL_BYTES = 1 << 48
"""Limit on the bytes of all gradients."""
MAX_STEPS = 100
"""Limit on measured steps."""
MAX_LATE = 1024
"""Limit on ranks with their own lateness."""


class Compute(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Time of one step without communication: as a whole, or by phase. Milliseconds."""

    step_ms: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    optimizer_ms: float | None = None
    host_gap_ms: float = 0.0
    """Part of the step in which the device waits for its host."""
    tokens: int | None = None
    """Tokens of one rank in a step, in place of times: prices them from `device.name`."""
    dtype: str = "bfloat16"
    """Of the products that `tokens` prices."""


class Model(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The shape of a transformer decoder."""

    layers: int
    hidden: int
    vocabulary: int
    sequence: int
    feed_forward: int | None = None
    tied_embedding: bool = True
    learned_positions: bool = True
    bias: bool = False
    causal: bool = True
    dtype: str = "float32"
    """Of gradients."""


class Parameter(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One parameter, in the order in which the module registers them."""

    name: str
    shape: list[int]
    dtype: str = "float32"
    operations: float | None = None
    """Of its layer's backward pass; only shares count. Without it, those of a matrix used once for each token."""
    tied_to: str = ""
    """Name of the parameter that it shares."""


class Device(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The device that computes."""

    memory_gbs: float | None = None
    """Memory bandwidth from the data sheet: prices the optimizer and copies by the bytes that they move."""
    name: str | None = None
    """A device whose data sheet is known, in place of `memory_gbs`: one that `overlapscope dryrun --device` takes."""


class Optimizer(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The optimizer, which decides how many bytes its step moves."""

    name: str = "adamw"


class LinkSpeed(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Speed of one level of links, for a formula."""

    gbs: float
    """GB/s that one rank sends each way."""
    latency_us: float = 0.0


class CollectiveTimes(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How long an all-reduce takes: a measured table, points, or a formula with link speeds."""

    file: str | None = None
    """A table of nccl-tests or a CSV, relative to this file."""
    points: list[tuple[int, float]] | None = None
    """Measured [bytes, milliseconds]."""
    algorithm: str | None = None
    """A formula: its link is `intra`; `torus` and `hierarchical` also need `inter` and `ranks_per_node`."""
    intra: LinkSpeed | None = None
    inter: LinkSpeed | None = None
    ranks_per_node: int | None = None
    links: str | None = None
    """Links by name, inside a node and between nodes, as `overlapscope dryrun --links` takes them."""
    at_once: int = 1
    """Collectives that run at the same time: 1 with NCCL, 2 with gloo."""


class Ddp(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Settings of DistributedDataParallel, by its own names."""

    bucket_cap_mb: float | None = None
    bucket_cap_mb_list: list[float] = []
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    accumulation: int = 1
    no_sync: bool = False
    hook: Literal["none", "fp16_compress", "bf16_compress"] = "none"


class MeasuredStep(Ddp, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A measured step and its settings; keys that are missing are as in `ddp`."""

    step_ms: float


class WorkloadDocument(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A whole `WORKLOAD.toml`."""

    world_size: int
    compute: Compute
    collectives: CollectiveTimes
    model: Model | None = None
    parameters: list[Parameter] = []
    device: Device = Device()
    optimizer: Optimizer = Optimizer()
    ddp: Ddp = Ddp()
    measured: list[MeasuredStep] = []
    noise_percent: float = 1.0
    """Difference of two measurements of one setting, in percent."""
    lateness_ms: list[float] = []
    """How much later than the first rank each rank begins its step."""


def parse_workload(content: dict[str, Any]) -> WorkloadDocument:
    """Parse the content of a TOML file. Raises UsageError, which names the wrong key and the nearest known one."""
    _check_keys(content, WorkloadDocument, "")
    measured = content.get("measured")
    if isinstance(measured, list):  # missing keys of a measured step are as in `ddp`
        shared = content.get("ddp", {})
        content = {**content, "measured": [_joined(shared, each) for each in measured]}
    try:
        document = msgspec.convert(content, WorkloadDocument)
    except msgspec.ValidationError as error:
        raise UsageError(str(error).replace("`$.", "`").replace("Object missing", "missing")) from error
    _check(document)
    return document


def _joined(shared: Any, step: Any) -> Any:
    """Return a measured step with missing keys taken from `ddp`; one cap replaces a list of caps."""
    if not isinstance(shared, dict) or not isinstance(step, dict):
        return step
    left = {key: value for key, value in shared.items() if key != "bucket_cap_mb_list" or "bucket_cap_mb" not in step}
    return {**left, **step}


def _check_keys(content: Any, kind: Any, path: str) -> None:
    if isinstance(content, list):
        for number, each in enumerate(content):
            _check_keys(each, kind, f"{path}[{number}]")
    if not isinstance(content, dict):
        return
    known = get_type_hints(kind)
    for key, value in content.items():
        if key not in known:
            near = get_close_matches(str(key), known, n=1, cutoff=0.0)
            where = f" in {path}" if path else ""
            raise UsageError(f"unknown key {key!r}{where}; the nearest known one is {near[0]!r}")
        inner = _struct_in(known[key])
        if inner is not None:
            _check_keys(value, inner, f"{path}.{key}" if path else str(key))


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """Return the section type of a key, or of the items of its list; None for plain values."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if get_origin(hint) in (list, UnionType):
        return next((found for each in get_args(hint) if (found := _struct_in(each))), None)
    return None


def _check(document: WorkloadDocument) -> None:
    """Raise UsageError for values of the right type that are impossible."""
    _require(1 <= document.world_size <= MAX_RANKS, "world_size", f"must be from 1 to {MAX_RANKS}")
    times = document.compute
    for name in ("step_ms", "forward_ms", "backward_ms"):
        value = getattr(times, name)
        _require(value is None or 0 < value < 1e12, f"compute.{name}", "must be more than 0")
    for name in ("optimizer_ms", "host_gap_ms"):
        value = getattr(times, name)
        _require(value is None or 0 <= value < 1e12, f"compute.{name}", "must not be negative")
    spent = times.host_gap_ms + (times.optimizer_ms or 0.0)
    _require(times.step_ms is None or spent < times.step_ms, "compute.step_ms", "must be more than its parts")
    whole, parts = times.step_ms is not None, (times.forward_ms, times.backward_ms)
    priced = times.tokens is not None
    ways = (whole, all(parts), priced)
    _require(sum(ways) == 1, "compute", "needs step_ms, or forward_ms and backward_ms, or tokens, but not both")
    _require(not priced or document.device.name is not None, "device.name", "is needed to price compute.tokens")
    _require(not priced or 0 < (times.tokens or 0) < 1 << 40, "compute.tokens", "must be more than 0")
    stated = document.device.name is None or document.device.memory_gbs is None
    _require(stated, "device", "needs name or memory_gbs, but not both")
    _require(
        whole or priced or times.optimizer_ms is not None,
        "compute",
        "needs optimizer_ms together with forward_ms and backward_ms",
    )
    _require(
        (document.model is None) != (not document.parameters), "model", "or [[parameters]] is needed, but not both"
    )
    _require(0 < document.noise_percent < 50, "noise_percent", "must be more than 0 and less than 50")
    _require(document.optimizer.name in OPTIMIZER_TOUCHES, "optimizer.name", f"must be {_one_of(OPTIMIZER_TOUCHES)}")
    memory = document.device.memory_gbs
    _require(memory is None or 0 < memory < 1e9, "device.memory_gbs", "must be more than 0")
    late = document.lateness_ms
    _require(len(late) in (0, document.world_size), "lateness_ms", "needs a time for each of world_size ranks")
    _require(len(late) <= MAX_LATE, "lateness_ms", f"is for at most {MAX_LATE} ranks")
    _require(all(0 <= each < 1e9 for each in late), "lateness_ms", "must not be negative")
    _check_model(document)
    _check_collectives(document.collectives, document.world_size)
    for number, each in enumerate([document.ddp, *document.measured]):
        where = f"measured[{number - 1}]" if number else "ddp"
        caps = [*each.bucket_cap_mb_list, *([] if each.bucket_cap_mb is None else [each.bucket_cap_mb])]
        _require(all(0 < cap < 1e9 for cap in caps), f"{where}.bucket_cap_mb", "must be more than 0")
        _require(1 <= each.accumulation <= 64, f"{where}.accumulation", "must be from 1 to 64")
    _require(all(0 < each.step_ms < 1e12 for each in document.measured), "measured.step_ms", "must be more than 0")
    _require(len(document.measured) <= MAX_STEPS, "measured", f"holds more than {MAX_STEPS} steps")


def _check_model(document: WorkloadDocument) -> None:
    model = document.model
    if model is not None:
        sizes = (model.layers, model.hidden, model.vocabulary, model.sequence, model.feed_forward or 1)
        _require(all(1 <= each <= 1 << 30 for each in sizes), "model", "needs sizes of 1 or more")
        _require(model.layers <= MAX_ENTRIES // 12, "model.layers", "is more than any model has")
        _require(model.dtype in ITEM_BYTES, "model.dtype", f"must be {_one_of(ITEM_BYTES)}")
    _require(len(document.parameters) <= MAX_ENTRIES, "parameters", f"are more than {MAX_ENTRIES}")
    names = [each.name for each in document.parameters]
    _require(len(set(names)) == len(names), "parameters", "hold the same name twice")
    own = {each.name for each in document.parameters if not each.tied_to}
    for each in document.parameters:
        where = f"parameters {each.name!r}"
        _require(each.dtype in ITEM_BYTES, where, f"needs a dtype that is {_one_of(ITEM_BYTES)}")
        _require(
            all(0 < size < 1 << 40 for size in each.shape) and len(each.shape) < 9, where, "has an impossible shape"
        )
        _require(each.operations is None or 0 <= each.operations < 1e30, where, "has impossible operations")
        _require(not each.tied_to or each.tied_to in own, where, f"is tied to {each.tied_to!r}, which is no parameter")
    _require(not document.parameters or bool(own), "parameters", "are all tied to others")


def _check_collectives(given: CollectiveTimes, world_size: int) -> None:
    ways = [each is not None for each in (given.file, given.points, given.algorithm, given.links)]
    _require(sum(ways) == 1, "collectives", "needs one of file, points, algorithm and links")
    _require(1 <= given.at_once <= 64, "collectives.at_once", "must be from 1 to 64")
    for size, time in given.points or []:
        _require(
            0 < size < 1 << 60 and 0 < time < 1e12, "collectives.points", "must be [bytes, milliseconds], more than 0"
        )
    _require(given.points is None or bool(given.points), "collectives.points", "is empty")
    if given.algorithm is None:
        return
    _require(given.algorithm in FORMULAS, "collectives.algorithm", f"must be {_one_of(FORMULAS)}")
    _require(given.intra is not None, "collectives.intra", "is needed: gbs and latency_us of the links")
    for name, link in (("intra", given.intra), ("inter", given.inter)):
        if link is not None:
            fits = 0 < link.gbs < 1e9 and 0 <= link.latency_us < 1e9
            _require(fits, f"collectives.{name}", "needs gbs above 0 and a latency_us that is not negative")
    if given.algorithm in ("torus", "hierarchical"):
        _require(given.inter is not None, "collectives.inter", "is needed: two levels have two kinds of links")
        local = given.ranks_per_node or 0
        fits = local > 0 and world_size % local == 0
        _require(fits, "collectives.ranks_per_node", f"must divide world_size, which is {world_size}")


def _require(holds: bool, key: str, what: str) -> None:
    if not holds:
        raise UsageError(f"{key} {what}")


def _one_of(names: Any) -> str:
    return f"one of {', '.join(names)}"
