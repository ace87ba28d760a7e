"""The table of causes has one column of shares; the longest loss and chains name the longest piece inside of them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from overlapscope.analysis.cost.throughput import Throughput
from overlapscope.analysis.graph.answers import Chain, CriticalPath, ExplainedSpan, Link, LongestLoss, StepPath
from overlapscope.analysis.result import Analysis
from overlapscope.report.formatting import short
from overlapscope.report.text import advice, throughput
from overlapscope.report.text import analysis as shown
from overlapscope.report.text.chain import chain_lines, folded, link_words, stretches
from overlapscope.report.text.critical_path import bound_text, longest_loss_text
from tests.unit.report.test_first_sentences import MS, with_lengths

USUAL_MS: Mapping[str, int] = {"dependency": 3, "queued": 1}


def with_causes(analysis: Analysis, causes_ms: Sequence[Mapping[str, int]]) -> Analysis:
    """Return the analysis with these causes of each step, on all ranks; a median step has those of USUAL_MS."""

    def in_ns(each: Mapping[str, int]) -> dict[str, int]:
        return {cause: ms * MS for cause, ms in each.items()}

    ranks = [
        replace(info, steps=[
            replace(step, causes=in_ns(own)) for step, own in zip(info.steps, causes_ms, strict=False)
        ])
        for info in analysis.ranks
    ]  # fmt: skip
    head = replace(analysis.headline, causes=in_ns(USUAL_MS), exposed_comm_ns=4 * MS)
    return replace(analysis, ranks=ranks, headline=head)


def table(analysis: Analysis) -> list[list[str]]:
    """Return the cells of the table of causes, as it stands in the text."""
    (found,) = (each for each in shown.render(analysis).split("\n\n") if each.startswith("why exposed"))
    lines = [line for line in found.splitlines() if "  " in line]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


ALIKE = with_lengths((10, 10, 10, 10), (10, 10, 10, 10), (10, 10, 10, 10))
ONE_LONG = with_lengths((10, 10, 50, 10), (10, 10, 10, 10), (10, 10, 50, 10))
"""The third step is an outlier."""


def test_shares_are_of_all_steps_where_none_is_an_outlier() -> None:
    """Of 3, 3, 3 and 3 ms, and 1, 1, 9 and 1."""
    found = table(with_causes(ALIKE, [USUAL_MS, USUAL_MS, {"dependency": 3, "queued": 9}, USUAL_MS]))
    assert found == [
        ["why exposed", "ms a step", "share", "of all steps"],
        ["the next compute waited for it", "3.000", "75.0 %", "50.0 %"],
        ["queued behind another collective", "1.000", "25.0 %", "50.0 %"],
    ]


def test_an_outlier_is_left_out_of_the_shares_and_the_column_says_so() -> None:
    """It waited for 90 ms, which no other step did."""
    long = {"dependency": 3, "queued": 9, "peer_host": 90}
    found = table(with_causes(ONE_LONG, [USUAL_MS, USUAL_MS, long, USUAL_MS]))
    assert found == [
        ["why exposed", "ms a step", "of steps but outliers"],
        ["the next compute waited for it", "3.000", "75.0 %"],
        ["queued behind another collective", "1.000", "25.0 %"],
    ]


def test_a_cause_that_only_an_outlier_has_is_listed_with_its_gpu_hours() -> None:
    """They are of all steps."""
    costed = with_causes(ONE_LONG, [USUAL_MS, USUAL_MS, {"dependency": 3, "queued": 9, "tail": 90}, USUAL_MS])
    hours = {"dependency": 1.0, "queued": 1.0, "tail": 6.0}
    assert costed.throughput is not None
    found = table(replace(costed, throughput=replace(costed.throughput, exposed_causes_gpu_hours_a_day=hours)))
    assert found[-1] == ["only the optimizer follows, or recording ends", "0.000", "0.0 %", "6.0"]


def test_parts_of_a_sum_that_only_an_outlier_has_are_listed_with_their_gpu_hours() -> None:
    waits = {"peer_host": 60, "peer_compute": 30}
    costed = with_causes(ONE_LONG, [USUAL_MS, USUAL_MS, {"dependency": 3, **waits}, USUAL_MS])
    hours = {"dependency": 1.0, "queued": 1.0, "peer_host": 4.0, "peer_compute": 2.0}
    assert costed.throughput is not None
    found = table(replace(costed, throughput=replace(costed.throughput, exposed_causes_gpu_hours_a_day=hours)))
    assert [row[-1] for row in found[-3:]] == ["6.0", "2.0", "4.0"]


def test_a_cause_that_only_some_usual_steps_have_is_listed() -> None:
    found = table(with_causes(ALIKE, [USUAL_MS, USUAL_MS, {"dependency": 3, "tail": 9}, USUAL_MS]))
    assert [row[1:] for row in found] == [
        ["ms a step", "share", "of all steps"], ["3.000", "75.0 %", "50.0 %"], ["0.000", "0.0 %", "37.5 %"],
        ["1.000", "25.0 %", "12.5 %"],
    ]  # fmt: skip


def test_of_a_single_step_shares_are_of_what_it_exposed() -> None:
    one = with_lengths((10,), (10,), (10,))
    found = table(with_causes(one, [{"dependency": 1}]))
    assert found == [
        ["why exposed", "ms a step", "share"],
        ["the next compute waited for it", "3.000", "75.0 %"],
        ["queued behind another collective", "1.000", "25.0 %"],
    ]


def test_a_table_has_a_second_column_of_shares_only_where_the_median_step_differs_by_a_point() -> None:
    """With 9 ms queued in one step it is half of all, and a quarter of the median one; with 1 ms a quarter of both."""
    for odd_ms, columns in ((9, ["share", "of all steps"]), (1, ["of all steps"])):
        steps = [USUAL_MS, USUAL_MS, {"dependency": 3, "queued": odd_ms}, USUAL_MS]
        assert table(with_causes(ALIKE, steps))[0] == ["why exposed", "ms a step", *columns]


def test_milliseconds_are_means_where_the_mean_step_exposes_much_more_than_the_median_one() -> None:
    """The median step exposes 4 ms; a slower step, as long as no outlier is, exposes more, waiting for its transfer."""
    slow = {"dependency": 3, "slow_transfer": 11, "queued": 1}

    def of(third: Mapping[str, int], exposed_ms: int) -> Analysis:
        known = with_causes(ALIKE, [USUAL_MS, USUAL_MS, third, USUAL_MS])
        steps = [
            replace(each, exposed_comm_ns=(exposed_ms if at == 2 else 4) * MS)
            for at, each in enumerate(known.headline.job_steps)
        ]
        return replace(known, headline=replace(known.headline, job_steps=steps))

    assert table(of(slow, 15)) == [
        ["why exposed", "mean ms a step", "of all steps"],
        ["the next compute waited for it", "3.000", "44.4 %"],
        ["transfer slower than its baseline", "2.750", "40.7 %"],
        ["queued behind another collective", "1.000", "14.8 %"],
    ]
    said = "Milliseconds are means of 4 steps: the mean step exposes 6.750 ms, the median one 4.000 ms."
    assert said in shown.render(of(slow, 15)).splitlines()
    assert table(of({"dependency": 3, "queued": 5}, 8))[0][1] == "ms a step", "5 ms are not more than 1.25 times 4"


# --- the longest loss ------------------------------------------------------------------------------------------------


def work(start_ms: int, end_ms: int, what: str | None, *, op: str | None = None, kind: str = "compute") -> Link:
    return Link(
        rank=0, kind=kind, known="order", what=what, start_ns=start_ms * MS, end_ns=end_ms * MS, op=op, span=1
    )  # fmt: skip


def loss_of(links: Sequence[Link], begin_ms: int = 100, end_ms: int = 200) -> LongestLoss:
    explained = ExplainedSpan(span=1, kind="compute", name="after", op=None, start_ns=end_ms * MS, end_ns=end_ms * MS)
    chain = Chain(
        rank=0, origin_ns=0, moment_ns=150 * MS, doing="idle", explains=explained, chain=list(links), is_cut=False,
        ranks=[0],
    )  # fmt: skip
    return LongestLoss(step=3, rank=0, start_ns=begin_ms * MS, end_ns=end_ms * MS, chain=chain)


def test_of_the_longest_loss_the_longest_piece_inside_of_it_is_named() -> None:
    """The product took 140 ms, of which 40 lie in the loss; the addition 60, all of them."""
    text = longest_loss_text(loss_of([work(140, 200, "aten::add"), work(0, 140, "aten::mm")]))
    assert text.splitlines()[1:] == [
        "  100.000  ms  rank 0  2 pieces of work on its stream or thread, the longest aten::add (order)"
    ]
    longer = longest_loss_text(loss_of([work(170, 200, "aten::add"), work(0, 170, "aten::mm")]))
    assert "the longest aten::mm (order)" in longer


def test_pieces_that_ended_before_the_loss_are_not_counted() -> None:
    links = [work(150, 200, "aten::add"), work(100, 150, "aten::mm"), work(20, 100, "aten::bmm"), work(0, 20, "x")]
    text = longest_loss_text(loss_of(links))
    assert text.splitlines()[1:] == [
        "  100.000  ms  rank 0  2 pieces of work on its stream or thread, the longest aten::add (order)"
    ]


def test_a_link_counts_with_its_part_of_the_loss() -> None:
    links = [work(180, 200, "all_reduce", kind="transfer"), work(40, 180, "aten::mm")]
    text = longest_loss_text(loss_of(links))
    assert text.splitlines()[1:] == [
        "  20.000  ms  rank 0  transfer of all_reduce (order)",
        "  80.000  ms  rank 0  compute aten::mm (order)",
    ]
    assert links[1].start_ns == 40 * MS, "the chain itself is as it was"


@pytest.mark.parametrize(("late_ms", "words"), [(80, ", all of it after"), (30, ", 30.000 ms of it after"), (0, "")])
def test_of_a_late_end_the_part_in_the_loss_is_told(late_ms: int, words: str) -> None:
    """The transfer began 60 ms before the loss, and ends 40 ms after its begin."""
    transfer = replace(work(40, 140, "all_reduce", kind="transfer"), late_end_ns=late_ms * MS)
    text = longest_loss_text(loss_of([work(140, 200, "aten::mm"), transfer]))
    late = f"{words} the call had ended on another rank" if words else ""
    assert f"  40.000  ms  rank 0  transfer of all_reduce{late} (order)" in text.splitlines()


def transfers(*lasted_ms: int, other: str | None = None) -> list[Link]:
    """Return calls that follow each other up to 200 ms, the latest first; between two of them a gap of a stream."""
    found, end = [], 200
    for each in lasted_ms:
        found.append(work(end - each, end, "all_reduce", kind="transfer"))
        found += [work(end - each, end - each, other, kind="event")] if other else []
        end -= each
    return found


@pytest.mark.parametrize("other", [None, "an event"])
def test_what_is_repeated_shares_a_line_with_how_often_and_how_long(other: str | None) -> None:
    text = longest_loss_text(loss_of(transfers(20, 22, 18, 40, other=other)))
    assert text.splitlines()[1:] == [
        "  100.000  ms  rank 0  4 x transfer of all_reduce, 18.000 to 40.000 ms each (order)"
    ]
    lines = chain_lines(transfers(20, 22, 18, 40, other=other), [ms * MS for ms in (1, 2, 9, 3, 1, 1, 1, 1)])
    assert [line.split()[:4] for line in lines[1:2]] == [["100.000", "100.000", "0", "<="]]
    assert lines[1].endswith("4 x transfer of all_reduce, 18.000 to 40.000 ms each")
    assert len(lines) == (3 if other else 2)


def test_two_equal_rows_stay_as_they_are() -> None:
    assert folded("aab") == [[0], [1], [2]]
    assert folded("abab") == [[0], [1], [2], [3]]
    assert folded("caaabababab") == [[0], [1, 2, 3], [4, 6, 8, 10], [5, 7, 9]]


def test_what_is_left_of_a_loss_is_said_with_its_sum() -> None:
    cuts = [200, 180, 160, 140, 120, 110, 105, 100]
    names = [work(begin, end, f"call_{begin}", kind="transfer") for end, begin in pairwise(cuts)]
    *_, last = longest_loss_text(loss_of(names)).splitlines()
    assert last == "  ... 2 more lines, 10.000 ms: overlapscope explain RUN --at 0:150.000"


@pytest.mark.parametrize(
    ("name", "shown_as"),
    [
        ("void at::native::add<float>(int)", "void at::native::add<float>(int)"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply<float>(int)", "multi_tensor_apply<float>(int)"),
        ("avoid at::native::vectorized_elementwise_kernel<4, int>", "avoid vectorized_elementwise_kern..."),
    ],
)
def test_long_names_of_kernels_lose_what_tells_none_from_another(name: str, shown_as: str) -> None:
    assert short(name, 36) == shown_as


def test_where_nothing_is_recommended_the_critical_path_says_what_is_to_gain_at_most() -> None:
    head = replace(ALIKE.headline, window="step")
    path = StepPath(
        step=3, rank=0, length_ns=10 * MS, parts={"compute": 9 * MS, "transfer": MS}, ranks={}, operations=[]
    )
    known = replace(
        ALIKE, headline=head, critical_path=CriticalPath(scope="ranks", median_step=3, steps=[path]),
        ranks=[
            replace(info, steps=[replace(step, exposed_comm_ns=(2 + info.rank) * MS) for step in info.steps])
            for info in ALIKE.ranks
        ],
    )  # fmt: skip
    bound = bound_text(known)
    assert bound == (
        "Compute is 90.0 % of the critical path of step 3: no change of communication gains more than 3.000 ms a step, "
        "but for compute that it slows."
    )
    assert " ".join(advice.render([], [], bound).split()) == f"Nothing to recommend. {bound}"
    assert bound_text(replace(known, critical_path=CriticalPath(reason="clocks"))) == ""
    assert advice.render([], []) == "Nothing to recommend.\n"


@pytest.mark.parametrize(("exposed_hours", "said"), [(24.0, False), (26.0, False), (27.0, True), (2.3, True)])
def test_hours_of_the_median_step_are_said_where_they_differ_by_a_tenth_and_an_hour(
    exposed_hours: float, said: bool
) -> None:
    head = replace(ALIKE.headline, window="step", step_ns=10 * MS, exposed_comm_ns=5 * MS, idle_ns=None, job_steps=[])
    found = Throughput(
        steps=4, ranks=2, devices=2, on_device=True, device=None, time_ns=10 * MS, time_from="recorded",
        exposed_gpu_hours_a_day=exposed_hours,
    )  # fmt: skip
    (day,) = throughput.lines(found, head)
    assert ("the median step" in day) is said
    small = replace(head, exposed_comm_ns=MS // 100)
    (day,) = throughput.lines(replace(found, exposed_gpu_hours_a_day=0.07), small)
    assert "the median step" not in day, "0.05 and 0.07 hours are apart by less than an hour"
    # Outliers set the length of the median step, of which a usual one exposes half.
    steps = [
        replace(each, step_ns=length * MS, exposed_comm_ns=exposed * MS)
        for each, (length, exposed) in zip(ALIKE.headline.job_steps, ((5, 2), (10, 5), (10, 6)), strict=False)
    ]
    outliers = replace(head, exposed_comm_ns=2 * MS, job_steps=steps)
    (day,) = throughput.lines(found, outliers)
    assert ("; the median of what steps give is 24.0." in day) is said


# --- what has no name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("longest", "words"),
    [
        pytest.param(work(0, 50, None), "2 pieces of work on its stream or thread", id="no name"),
        pytest.param(work(0, 50, ""), "2 pieces of work on its stream or thread", id="an empty one"),
        pytest.param(
            work(0, 50, "gemm"), "2 pieces of work on its stream or thread, the longest gemm", id="a name"
        ),
        pytest.param(
            work(0, 50, None, op="aten::mm"),
            "2 pieces of work on its stream or thread, the longest aten::mm (unnamed)", id="an operation",
        ),
    ],
)  # fmt: skip
def test_of_several_pieces_the_longest_is_named_if_it_has_a_name(longest: Link, words: str) -> None:
    (row,) = stretches([work(50, 60, "aten::add"), longest])
    assert row.words == words


def test_what_a_thread_did_before_is_said_where_no_call_of_it_was_recorded() -> None:
    assert link_words(work(0, 50, None, kind="host")) == "what its thread did before"
    assert link_words(work(0, 50, None, kind="launch")) == "launched"
    assert link_words(work(0, 50, "gloo:all_reduce", kind="launch")) == "launch of gloo:all_reduce"
    assert link_words(work(0, 50, "gemm")) == "compute gemm"


def host(*, calls: int = 24, inside_ns: int = 0, step: int | None = None, during: str | None = None) -> Link:
    return Link(
        rank=0, kind="host", known="order", what="cudaLaunchKernel", op="aten::embedding", start_ns=100 * MS,
        end_ns=200 * MS, span=None, calls=calls, longest_ns=9 * MS, longest_start_ns=150 * MS, before="cudaMalloc",
        during=during,
        inside=["cudaFree", "cudaMalloc"], inside_calls=22, inside_ns=inside_ns, step=step,
    )  # fmt: skip


def test_calls_in_which_a_host_mostly_was_are_named_with_their_number_and_time() -> None:
    until = "aten::embedding (cudaLaunchKernel)"
    pause = "longest pause 9.000 ms before cudaMalloc"
    mostly = f"host: 22 calls of cudaFree and cudaMalloc, 51.000 ms, until {until}, {pause}"
    assert link_words(host(inside_ns=51 * MS)) == mostly
    half = f"host: 24 calls until {until}, {pause}"
    assert link_words(host(inside_ns=50 * MS)) == half


def test_a_pause_is_told_by_the_call_in_which_it_lay_and_by_its_range() -> None:
    one = replace(host(calls=1), before="aten::add", in_call="cuLaunchKernel")
    assert link_words(one) == "host: in the launch call cuLaunchKernel of aten::add"
    assert link_words(replace(one, in_call="cudaFree", before="cudaFree")) == "host: in the call cudaFree"
    assert link_words(replace(one, during="load")) == "host: in load, in the launch call cuLaunchKernel of aten::add"
    many = replace(host(), pause_during="load")
    assert link_words(many).endswith("longest pause 9.000 ms in load, before cudaMalloc")


def test_a_loss_says_that_the_host_was_in_another_step() -> None:
    """The loss is of step 3."""
    other = "host, mostly in step 4: in load, before"
    for step, words in ((4, other), (3, "host: in load, before"), (None, "host: in load")):
        assert words in longest_loss_text(loss_of([host(step=step, during="load")])).splitlines()[1]
    assert "in step" not in chain_lines([host(step=4)])[1], "of no step"


def test_parts_of_a_sum_that_would_be_shown_as_nothing_are_left_out() -> None:
    waits = {"peer_host": 9_000, "peer_comm": 10, "peer_copy": 4}
    found = with_causes(ALIKE, [waits] * 4)
    causes = {cause: ms * MS for cause, ms in waits.items()}
    head = replace(found.headline, causes=causes, exposed_comm_ns=sum(causes.values()))
    assert [row[0] for row in table(replace(found, headline=head))] == [
        "why exposed",
        "wait: for late ranks",
        "wait: the late rank idled longer (host)",
        "wait: the late rank communicated longer",
    ]


@pytest.mark.parametrize(("step_ms", "rows"), [(900, 3), (1_100, 1)], ids=["from 1 % of a step", "less"])
def test_waiting_is_divided_by_cause_from_a_hundredth_of_a_step(step_ms: int, rows: int) -> None:
    waits = {"peer_host": 6, "peer_compute": 4}
    found = with_causes(ALIKE, [waits] * 4)
    causes = {cause: ms * MS for cause, ms in waits.items()}
    head = replace(found.headline, causes=causes, exposed_comm_ns=10 * MS, step_ns=step_ms * MS)
    found = replace(found, headline=head, throughput=None)
    assert [row[0] for row in table(found)][1:] == [
        "wait: for late ranks",
        "wait: the late rank idled longer (host)",
        "wait: the late rank computed longer",
    ][:rows]
