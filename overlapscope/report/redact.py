"""Replace the names of hosts, modules, files, groups and kernels in a document by placeholders; figures do not change.

How a text is treated depends only on the field that holds it. A field with a fixed vocabulary keeps the words of that
vocabulary. Any other text, also in a field that is not listed here, becomes a placeholder such as `module-3`; the same
text always becomes the same placeholder. Free text is not searched for names: titles of findings are rebuilt from
their id and figures, all other sentences are left out.
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache, lru_cache
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from overlapscope.analysis.common.cause_table import CAUSES, IDLE_CAUSES
from overlapscope.analysis.graph.answers import Doing
from overlapscope.analysis.graph.model import EDGE_KINDS, GAPS
from overlapscope.analysis.graph.model import KNOWN as KNOWN_BY
from overlapscope.ingest.registry import BUILT_IN_READERS
from overlapscope.report.text.cross_rank import evidence_text
from overlapscope.timeline.columns import column_kinds
from overlapscope.timeline.facts import FACT_TABLES

D = TypeVar("D", bound=msgspec.Struct)
FREE_TEXT: Final = frozenset(
    {
        "title",
        "warnings",
        "notes",
        "not_comparable",
        "reason",
        "reasons",
        "verify",
        "measured",
        "assumed",
        "apply",
        "published",
    }
)
"""Fields of sentences. They become an empty value of their type; a title is rebuilt."""
PLACEHOLDER_KINDS: Final[Mapping[str, str]] = {
    field: kind
    for kind, fields in {
        "file": "path source sources set_up called_at files trace",
        "run": "run runs ComparedRun.name HistoryRun.name",
        "host": "host hosts",
        "group": "group groups communicator communicators before behind than",
        "module": "module modules module{}",
        "kernel": "names host_op KernelChange.name PathOperation.name",
        "collective": "Part.name",
        "device": "device nic bus cards interfaces a b pairs peers links{}",
        "setting": "fingerprint identity base candidate IdentityChange.before IdentityChange.after knobs present value",
        "message": "text first stuck_because",
        "call": "called calls{} last_entered ShownBy.call ShownBy.op Link.what Link.in_call",
    }.items()
    for field in fields.split()
}
"""What the text of a field names, which its placeholder begins with; `name` for a field that is not listed.

`Struct.field` takes precedence over `field`; `field{}` means the keys of an object that maps names to values.
"""


def _words(words: str, between: str = "[ _+-]") -> str:
    """Return a pattern that matches one or more of these words (alternatives of a regular expression)."""
    return f"(?:{words})(?:{between}(?:{words}))*"


_OURS: Final = _words(
    "a|accumulation|across|activations|after|against|algbw|algobw|algorithm|all|allgather|allocation|allocator"
    "|allreduce|alltoall|alone|and|any|apart|appeared|archive|as|ascend|attributed|avg|awaited|backward|bandwidth|barrier"
    "|base|batches|because|before|begins|behind|below|benchmark|between|bit|blame|blocking|both|bound|broadcasts?|bubble"
    r"|bucket\d*|buckets|busbw|busy|by|bytes|c10d|call|called|calls|came|candidate|cap|cards|causes|chakra|chance"
    "|change|channels|checkpoint|churn|clock|coalesced|collection|collective|collectives|collector|collnet|combines|comm|comms"
    "|communicated|communication|communicator|communicators|comp|compared|comparison|compute|computed|computing"
    "|connections|context|copied|copies|copy|core|cores|cost|count|cpu|critical|cut|damaged|data|database|ddp|deciding|deepspeed"
    "|dependency|desync|device|devices|differ|difference|different|differing|differs|direct|does|dropped|dtype|dump|dumped"
    "|duration|during|effect|efficiency|elapse|elapsed|elements|elementwise|embedding|enqueue|entered|error|events"
    "|excess|exchange|execution|expert|explain|export|exposed|fall|fastest|few|fewer|figures|files|fill|first|flatten"
    "|flight|for|forward|found|fraction|free|FSDP|fsdp|fullest|fused|fusion|garbage|gather|gathered|gathers|gbit|gbs"
    "|gpu|gradient|gradients|graph|grew|grids|group|groups|h1|hccs|held|hidden|high|horovod|host|hosts|id|ideal|idle"
    "|imbalance|in|infiniband|info|input|inside|inspector|insufficient|inter|interfaces|interference|into|intra|irecv"
    "|isend|iteration|iterations|its|job|keep|kernels|keys|kinds|kineto|known|ktok|lane|lanes|larger|last|lasts|late"
    "|latency|launch|launched|launches|lead|least|left|like|line|link|links|little|loading|log|logging|long|longer|look|lost"
    "|low|machines|mark|matched|matrix|max|may|mb|mean|measured|measurements|median|megatron|members|memory|messages"
    "|mhz|mib|micro|min|mismatch|missing|mixed|models|more|most|moved|moving|ms|names|narrow|nccl|negotiation|negotiations"
    "|network|no|node|nodes|nor|not|ns|nsight|number|nvls|objects|odd|of|off|on|one|only|op|operation|operations|optimizer|or"
    "|other|others|out|output|outside|overlap|overlapped|overlapscope|p2p|paced|pageable|pairs|parallel|parallelism"
    "|path|paths|pause|paused|pauses|pausing|pcie|peer|peers|per|perfetto|pipeline|place|places|plugin|polls|possible"
    "|potential|power|predicted|prefetch|preparing|profiler|progress|queue|queued|range|rank|ranks|rate|ratio|rdma"
    "|reasons|received|receiver|receiving|recomputation|recorded|recorder|recording|recurring|recv|reduce"
    "|reducescatter|reductions|regrouped|repair|repaired|repeated|replay|reported|retries|ring|rising|rocprofv3|run"
    "|runs|s|sampled|sampling|scatter|sdma|send|sender|sending|seq|serving|setting|sharded|share|shared|shrank|sided|since"
    "|single|sixteen|size|sizes|slow|slowdown|slower|slowest|slowing|slowness|sm|small|socket|software|sort|source"
    "|spans|split|stage|stages|stand|standing|start|starts|stated|step|steps|still|straggler|stream|stuck"
    "|synchronisation|synchronising|synchronization|table|tail|telemetry|tensor|tensors|tests|text|than|the|then"
    "|throttle|throttled|ticks|time|timeout|timeouts|timer|timers|times|to|topo|topology|total|trace|training"
    "|transfer|transfers|transit|transports|tree|trial|truncated|turn|twice|unclassified|unclear|uneven|unfused|units"
    "|unknown|unlinked|unmarked|unnamed|unread|unrecorded|until|untold|up|us|use|usual|v|value|vanished|vc|version|versions|view"
    "|w|wait|waited|waiting|waits|warning|warnings|watchdog|while|wide|window|with|without|work|workers|world|worst"
    "|yes|zb"
)
"""Match names made of OverlapScope's own words: operations, causes, metrics, findings, figures, formats."""
_NAMES: Final = "|".join(map(re.escape, [*CAUSES, *IDLE_CAUSES, *(reader.format for reader in BUILT_IN_READERS)]))
"""Causes of exposed and idle time and formats of sources: a new one is never hidden."""
_OPERATION: Final = "_?" + _words(
    "all|reduce|gather|scatter|to|broadcast|barrier|send|recv|v|vc|coalesced|base|single|alltoall|allreduce|allgather"
    "|reducescatter|isend|irecv|p2p|uneven|group|unknown|collective|wait",
    "_",
)
_DTYPE: Final = (
    r"(?i:(?:c10::)?(?:b?float|u?int|complex|bool|half|double|byte|char|short|long|fp|bf|f|i|u)\d*"
    r"(?:_?e\dm\d(?:fn|fnuz|b11fnuz)?)?)"
)
_LIBRARY: Final = "nccl|rccl|gloo|mpi|ucc|hccl|xccl"
_VERSION: Final = r"\d+(?:\.\d+){1,2}(?:(?:a|b|rc|\.?dev|\.?post)\d+)?(?:\+(?:cpu|(?:cu|cuda|rocm)\d+(?:\.\d+)*))?"
_MODEL: Final = _words(
    r"NVIDIA|AMD|Intel|Tesla|GeForce|RTX|GTX|TITAN|PRO|Ti|SUPER|Instinct|Radeon|Ascend|NPU|Blackwell|Ada|Generation"
    r"|Server|Workstation|Max|Q|Edition|PCIe|NVL|OAM|SXM\d?|HBM\de?|PG\d+|[A-Z]{1,2}\d{2,4}[A-Z]?|[LT]4|MI\d+[AX]?|\d+GB"
    r"|\d{3,4}",
    "[ -]",
)
"""Match models of devices."""
_NUMBERS: Final = r"\[?-?\d+(?:\.\d+)?(?:, -?\d+(?:\.\d+)?)*\]?"
_GROUP: Final = r"\d+(?: \[\d+(?:, \d+)*\])?|\d+ ranks|default_pg|WORLD"
_KNOB: Final = (
    "bucket_bytes|bucket_cap_bytes|bucket_cap_mb|bucket_cap_mb_list|gradient_as_bucket_view|static_graph|no_sync|hook"
    "|find_unused_parameters|small_last_bucket|comm_hook|compile_splits|accumulation|zero_stage|partition_mb|priority"
    "|channels|link_speed|late_ranks|host_pauses_ms"
)
_KEY: Final = (
    rf"world_size|device|backend|python|dtype|parallelism|parameters|price|ranks|recording\.(?:basis|mode)|ddp\.(?:{_KNOB})"
    r"|(?:torch|torch_npu|cann|cuda_driver|cuda_runtime|hip_runtime|nccl|comm_lib)_version"
    r"|environment\.(?:NCCL|RCCL|TORCH|PYTORCH|GLOO|UCX|FI|OMP|CUDA)_[A-Z0-9_]+"
)
"""Match the keys of a run's identity."""
_SIZES: Final = r"(?:data|tensor|pipeline|expert|context) \d+"
_VALUE: Final = (
    rf"{_NUMBERS}|{_VERSION}|{_MODEL}|{_LIBRARY}|{_DTYPE}|{_SIZES}(?:, {_SIZES})*|True|False|None|mixed|cpu|trace"
    r"|events|log|16-bit|ranks? \d+(?:, \d+)*(?: and \d+ more)?"
)
_KERNEL: Final = (
    rf"(?:aten|c10d)::\w+(?:\.\w+)?|(?:(?:{_LIBRARY}):)?{_OPERATION}|host operations|unnamed"
    r"|Mem(?:cpy|set)(?: (?:HtoD|DtoH|DtoD|PtoP|HtoH|->|\(?(?:Device|Pageable|Pinned|Unknown)\)?))*"
)
"""Match kernel names that torch assigns; names that the job assigns do not match."""
_RUNTIME: Final = r"(?:cuda|hip|cu|acl|aclrt)[A-Z]\w*"
"""Match calls of the runtimes and drivers of devices."""
KNOWN: Final[Mapping[str, re.Pattern[str]]] = {
    field: re.compile(pattern, re.ASCII)
    for pattern, fields in {
        rf"{_OURS}|{_NAMES}": "dimension dimension{} phase phase{} side gpu_direct in_place pattern part parts{}"
        " bands{} failed name Metric.name MetricVerdict.name BudgetVerdict.name values{} Part.name ScalePart.name"
        " causes{} idle_causes{} longer_ns{} told{} held_by verdict known_from format kind_of_id evidence{}",
        _OPERATION: "op executed_op by_op{} ops",
        _DTYPE: "dtype",
        "all tensors|transfers|negotiations": "subject",
        f"{_GROUP}|{_OPERATION}": "before behind",
        _GROUP: "group groups communicator communicators",
        "unknown": "module{}",
        "(?i:ring|tree|collnet|direct|chain|nvls|pat|mesh|nhr|nb|hd|[-_])+": "algorithm algorithms",
        "(?i:simple|ll|ll128)": "protocol",
        rf"{_DTYPE}|(?:(?:data|tensor|pipeline|expert|context), )?(?:\d+|\?) ranks|forward|backward|optimizer"
        "|parameters|gradients|optimizer_state|activations|gathered_parameters|other": "base_is candidate_is",
        _words(
            "P2P|IPC|CUMEM|SHM|NET|IB|RoCE|Socket|AWS Libfabric|COLLNET|GDRDMA|read|direct|indirect|\\d", "/"
        ): "transport transports network",
        "NVLink|XGMI|PCIe|PIX|PXB|PHB|NODE|SYS|network|info|warning|timeout": "kind",
        rf"(?i:{_LIBRARY}) {_VERSION}": "library",
        _LIBRARY: "backend",
        _KERNEL: "names host_op longer_op KernelChange.name PathOperation.name Link.op Link.before ExplainedSpan.name"
        " ExplainedSpan.op",
        "|".join((*EDGE_KINDS, *KNOWN_BY, *GAPS, *get_args(Doing))): "Link.kind Link.known Link.gap Chain.doing"
        " ExplainedSpan.kind",
        rf"(?:GPU|NIC) ?\d{{1,2}}|{_MODEL}|network|cpu": "a b pairs peers device links{}",
        _RUNTIME: "ShownBy.call calls{}",
        rf"{_KERNEL}|{_RUNTIME}": "ShownBy.op Link.what Link.in_call",
        "|".join(column for table in FACT_TABLES.values() for column in column_kinds(table)): "rows{}",
        _KEY: "fingerprint{} identity{} key keys unknown_keys floor_differs",
        _VALUE: "fingerprint identity base candidate IdentityChange.before IdentityChange.after knobs present value",
        _KNOB: "knobs{} present{}",
        _VERSION: "version nccl_version",
        r"\d{4}-\d\d-\d\d[\d:.TZ+ -]*": "made_at",
        rf"(?:rank|step|stage|GPU)?\d+|\?|{_OURS}|{_DTYPE}|{_KEY}": "part_of_id",
    }.items()
    for field in fields.split()
}
"""The text that each field keeps unchanged; a field that is not listed keeps nothing."""
_SPECIFIC: Final = {*PLACEHOLDER_KINDS, *KNOWN}
_NUMBER: Final = re.compile(r"\d{1,9}")
"""Ranks and stages that are keys of an object."""
MOST_LISTED: Final = 3
MOST_PARTS: Final = 4
"""The place in an id has at most this many parts between colons; one with more is an address."""


def redacted(document: D) -> D:
    """Return the document with placeholders for names; the same input always results in the same placeholders."""
    return _Redactor().struct(document)


class _Redactor:
    """Replace names, and remember the placeholder of each text."""

    def __init__(self) -> None:
        self._placeholders: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def struct(self, struct: D) -> D:
        """Return a struct of the same type; fields whose type is a `Literal` or holds no text stay unchanged."""
        changed: dict[str, Any] = {}
        for name in _open_fields(type(struct)):
            specific = f"{type(struct).__name__}.{name}"
            changed[name] = self._value(getattr(struct, name), specific if specific in _SPECIFIC else name)
        if "title" in changed:
            changed["title"] = _title(changed["id"], changed["evidence"])
        return msgspec.structs.replace(struct, **changed)

    def _value(self, value: Any, field: str, *, is_fields: bool = False) -> Any:
        """Return the redacted value of a field; `is_fields`: the keys of an object are fields and not names."""
        if field in FREE_TEXT and isinstance(value, str | list | dict):
            return type(value)()
        if isinstance(value, str):
            return self._id(value) if field == "id" else self._text(value, field)
        if isinstance(value, msgspec.Struct):
            return self.struct(value)
        if isinstance(value, list | tuple):
            return type(value)(self._value(each, field, is_fields=True) for each in value)
        if isinstance(value, dict):
            is_fields = is_fields or field == "evidence"
            keys = "evidence{}" if is_fields and field != "rows" else f"{field}{{}}"
            return {
                self._text(key, keys): self._value(each, key if is_fields else field, is_fields=not is_fields)
                for key, each in value.items()
            }
        return value

    def _id(self, text: str) -> str:
        """Return the redacted id of a finding: a kind, often followed by a place of a few parts after colons."""
        kind, colon, place = text.partition(":")
        parts = place.split(":")
        if place in self._placeholders or len(parts) > MOST_PARTS or "" in parts:
            parts = [place]
        shown = [self._placeholders.get(each) or self._text(each, "part_of_id") for each in parts]
        return self._text(kind, "kind_of_id") + colon + ":".join(shown)

    def _text(self, text: str, field: str) -> str:
        if _stays(text, field):
            return text
        if text not in self._placeholders:
            kind = PLACEHOLDER_KINDS.get(field, "name")
            self._counts[kind] += 1
            self._placeholders[text] = f"{kind}-{self._counts[kind]}"
        return self._placeholders[text]


@lru_cache(maxsize=2**14)
def _stays(text: str, field: str) -> bool:
    known = KNOWN.get(field, _NUMBER if field.endswith("{}") else None)
    return not text or (known is not None and known.fullmatch(text) is not None)


@cache
def _open_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a struct that may hold arbitrary text, judged by their types.

    Findings and ids come last: by then the names in them have placeholders of more specific fields.
    """
    found = []
    for each in msgspec.structs.fields(kind):
        parts = get_args(each.type) or (each.type,)
        is_word = any(get_origin(part) is Literal for part in (each.type, *parts))
        if not is_word and not {int, float, bool, NoneType}.issuperset(parts):
            found.append(each.name)
    return tuple(sorted(found, key=lambda name: name in ("findings", "id")))


def _title(id_: str, evidence: Mapping[str, Any]) -> str:
    """Return the title of a redacted finding: kind, place, figures, and the first items of each list of evidence."""
    kind, _, place = id_.partition(":")
    lists = {key: value if isinstance(value, list) else [value] for key, value in evidence.items()}
    texts = {key: value[:MOST_LISTED] for key, value in lists.items() if {*map(type, value)} == {str}}
    parts = [evidence_text(evidence), *(f"{key.replace('_', ' ')} {', '.join(each)}" for key, each in texts.items())]
    where = f" ({place.replace(':', ', ')})" if place else ""
    return ": ".join(filter(None, [kind.replace("_", " ") + where, "; ".join(filter(None, parts))]))
