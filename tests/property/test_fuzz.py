"""Whatever bytes a file holds, reading gives a run or a deliberate error, and a run's figures add up."""

import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.run import Run
from tests.property.examples import examples
from tests.support.hostile import mutations, odd_documents, run_or_refusal
from tests.support.writers.kineto import (
    ABSOLUTE_FLOATS,
    BACKWARD,
    MS,
    TORCH_1_8,
    TORCH_2022,
    TORCH_2024,
    US,
    annotation,
    collective_args,
    distributed,
    launch,
    memcpy,
    op,
    record_param_comms,
    training,
    write,
)

GLOO = [
    op("aten::mm", 1 * MS, 2 * MS),
    op("c10d::allreduce_", 4 * MS, 20 * US, args={"Input Dims": [[[64]]], "Input type": ["TensorList"]}),
    annotation("gloo:all_reduce", 5 * MS, 1 * MS, thread=9, args={"Input Dims": [[64]], "Input type": ["float"]}),
]
COPY_ENGINE = [
    *training(1),
    record_param_comms(9_000 * US, 80 * US, args=collective_args("_allgather_base", out_elements=2048)),
    annotation("nccl:_all_gather_base", 9_010 * US, 60 * US, thread=BACKWARD),
    launch(9_020 * US, 9001, thread=BACKWARD, name="cudaMemcpyAsync"),
    memcpy(9_100 * US, 50 * US, name="Memcpy PtoP (Device -> Device)", stream=20, correlation=9001),
]
TEXTS = (
    write(training(1), TORCH_1_8, indent=True),
    write(training(1), TORCH_2022, metadata=distributed(0), ph_first=False),
    write(training(2), TORCH_2024, metadata=distributed(0), metadata_after=True),
    write(COPY_ENGINE, TORCH_2024, metadata=distributed(1)),
    write(training(1), ABSOLUTE_FLOATS, array=True),
    write(GLOO, TORCH_2024, metadata=distributed(0, backend="gloo")),
)


def check(run: Run | None) -> None:
    if run is None:
        return
    for info in analyze(run).ranks:
        for each in (info.whole, *info.steps):
            if each.window_ns is not None:
                work = (each.overlapped_ns, each.exposed_comm_ns, each.compute_only_ns, each.copy_only_ns)
                parts = (*work, each.idle_ns)
                assert min(part or 0 for part in parts) >= 0
                assert sum(part or 0 for part in parts) == each.window_ns


@examples(300)
@given(data=st.data(), text=st.sampled_from(TEXTS))
def test_any_change_of_the_text_gives_a_run_or_a_deliberate_error(data: st.DataObject, text: bytes) -> None:
    changed = data.draw(mutations(text))
    check(run_or_refusal(gzip.compress(changed, mtime=0) if data.draw(st.booleans()) else changed))


@pytest.mark.slow
@examples(300)
@given(data=st.data(), text=st.sampled_from(TEXTS))
def test_any_change_of_the_compressed_bytes_gives_a_run_or_a_deliberate_error(data: st.DataObject, text: bytes) -> None:
    check(run_or_refusal(data.draw(mutations(gzip.compress(text, mtime=0)))))


@examples(200)
@given(
    content=st.binary(max_size=400), start=st.sampled_from([b"", b"{", b"[", b'{"traceEvents":[', b"\x1f\x8b\x08\x00"])
)
def test_any_bytes_give_a_run_or_a_deliberate_error(content: bytes, start: bytes) -> None:
    check(run_or_refusal(start + content))


@pytest.mark.slow
@examples(300)
@given(trace=st.sampled_from([json.loads(text) for text in TEXTS]).flatmap(odd_documents))
def test_any_value_in_any_place_gives_a_run_or_a_deliberate_error(trace: Any) -> None:
    text = json.dumps(trace).encode()
    assume(not re.search(rb'"(rank|world_size)": \d{7}', text))  # such worlds are read in a process of their own
    check(run_or_refusal(text))
