"""The summary at the end of a recording."""

from overlapscope.report.text.summary import CaptureSummary, render


def rank(exposed_ns: float, hidden_ns: float) -> CaptureSummary:
    return CaptureSummary(
        rank=0,
        host="here",
        steps=4,
        step_ns=10e6,
        exposed_ns=exposed_ns,
        hidden_ns=hidden_ns,
        idle_ns=0.0,
        exposed_fraction=exposed_ns / 10e6,
    )


def test_exposed_comes_in_milliseconds_then_as_a_share() -> None:
    summary = render([rank(2e6, 1e6)], 1, "runs/a", "trace", [])
    assert "exposed         2.000 ms   20.0 % of the step" in summary
    assert summary.splitlines()[-1] == "next: overlapscope analyze runs/a"


def test_a_run_without_communication_says_so_and_no_figure() -> None:
    summary = render([rank(0.0, 0.0)], 1, "runs/a", "trace", [])
    assert "no communication was recorded" in summary
    assert "n/a" in summary
    assert "overlapped" not in summary
    assert "%" not in summary
