"""What the columns of somebody's measured table mean, by their names.

A name is a word and a unit: `time_ms`, `time (ms)`, `algbw_GBps`, `bucket_cap_mb`. Words have several spellings; a
quantity without a unit, or with one that could mean two things, is not guessed.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

_WORDS: Final = {
    "op": "op operation collective coll primitive",
    "ranks": "ranks nranks n_ranks num_ranks world_size world worldsize gpus ngpus n_gpus num_gpus",
    "dtype": "dtype datatype data_type",
    "algorithm": "algorithm algo",
    "protocol": "protocol proto",
    "in_place": "in_place inplace",
    "size": "size msg_size message_size data_size buffer_size msg message buffer",
    "time": "time latency duration elapsed t avg_time mean_time median_time time_avg time_mean time_median avg_latency",
    "algbw": "algbw alg_bw algorithm_bandwidth algo_bw",
    "busbw": "busbw bus_bw bus_bandwidth",
    "bucket_cap": "bucket_cap bucket_size bucket_cap_size",
    "bucket_sizes": "sizes bucket_sizes",
    "step": "step step_time iter iter_time iteration iteration_time",
}
_SPELLINGS: Final = {spelling: word for word, spellings in _WORDS.items() for spelling in spellings.split()}
_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "usec": 1_000,
    "ms": 1_000_000,
    "msec": 1_000_000,
    "s": 10**9,
    "sec": 10**9,
}
_BYTES: Final = {"b": 1, "byte": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
"""`kb` and `mb` are 1000 to some and 1024 to others."""
_RATES: Final = re.compile(r"(G|M)(B|iB|b|bit|bits)(?:ps|/s|_per_s|s)", re.ASCII)
"""By its letters alone: `GBps` are bytes, `Gbit/s` bits; `gbps` may be either, as may `Gbps` to careless writers."""
_HOUSE: Final = {"gbs": 1.0, "gb/s": 1.0, "gigabytes/s": 1.0}
_MEBIBYTES: Final = frozenset({"mb", "mib"})
"""torch's `bucket_cap_mb` counts MiB, whatever it is called."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column that is understood: its word, and what a value is to be multiplied with (ns, bytes, GB/s, MiB)."""

    place: int
    word: str
    scale: float = 1.0


def understand(header: Sequence[str]) -> dict[str, Column]:
    """Give the columns that are understood, by word; a word that stands twice is not, for either may be meant."""
    found: dict[str, list[Column]] = {}
    for place, name in enumerate(header):
        column = _column(place, name)
        if column is not None:
            found.setdefault(column.word, []).append(column)
    return {word: columns[0] for word, columns in found.items() if len(columns) == 1}


def plain(name: str) -> str:
    """Give a column's name in one spelling: lower case, words and unit joined by underscores."""
    return re.sub(r"_{2,}", "_", re.sub(r"[\s()\[\]-]", "_", name.strip()).strip("_").lower())


def _column(place: int, name: str) -> Column | None:
    spelled = plain(name)
    word = _SPELLINGS.get(spelled)
    if word in ("op", "ranks", "dtype", "algorithm", "protocol", "in_place"):
        return Column(place=place, word=word)
    if spelled in ("bytes", "nbytes", "num_bytes"):
        return Column(place=place, word="size")
    stem, _, unit = spelled.rpartition("_")
    word = _SPELLINGS.get(stem)
    scale: float | None = None
    if word in ("time", "step"):
        scale = _NS.get(unit)
    elif word in ("size", "bucket_sizes"):
        scale = _BYTES.get(unit)
    elif word == "bucket_cap":
        scale = 1.0 if unit in _MEBIBYTES else None
    else:
        return _bandwidth(place, name, spelled)
    return Column(place=place, word=word, scale=scale) if word and scale else None


def _bandwidth(place: int, name: str, spelled: str) -> Column | None:
    for word in ("algbw", "busbw"):
        stems = sorted((stem for stem, each in _SPELLINGS.items() if each == word), key=len, reverse=True)
        stem = next((stem for stem in stems if spelled.startswith(stem)), None)
        if stem is None:
            continue
        unit = name.strip()[len(stem) :].strip(" _()[]")
        found = _RATES.fullmatch(unit)
        if unit in _HOUSE:
            return Column(place=place, word=word, scale=_HOUSE[unit])
        if found and found[2] in ("B", "bit", "bits"):
            scale = (1.0 if found[1] == "G" else 1e-3) / (1 if found[2] == "B" else 8)
            return Column(place=place, word=word, scale=scale)
    return None
