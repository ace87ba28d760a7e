"""What held a late rank, in words: the causes of `held`, as reports and findings say them."""

from collections.abc import Mapping
from typing import Final

HELD_BY: Final[Mapping[str, str]] = {
    "host": "it was idle, its host had not given it more to do",
    "data_loading": "it was between two steps, as in loading data",
    "garbage_collector": "its interpreter collected garbage",
    "allocator": "its device's memory was full: the allocator gave memory back and asked again",
    "throttled": "its clocks were held down, or its processes' share of the cores",
    "more_work": "it ran more kernels than its peers",
    "slower_compute": "its kernels took longer than its peers'",
    "unknown": "by what is not known",
}
