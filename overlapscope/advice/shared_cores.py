"""Rule: hosts share too few processor cores; it comes before a straggler, which may be the scheduler's choice."""

from collections.abc import Mapping
from typing import Any, Final

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.analysis.stragglers.shared_cores import decides_who_is_late, waited_share
from overlapscope.display import percent_text

WORTH: Final = 0.1
"""Where no host waited for this share of the time, nor of a typical step's critical path, cores are no advice: some
waiting is in any job whose threads of communication share its cores."""
VERIFY = "overlapscope analyze NEW_RUN: the finding shared_cores is gone; meanwhile: pidstat -w -p PID 1 (nvcswch/s)"


def shared_cores(analysis: Analysis) -> Recommendation | None:
    """Return the recommendation where hosts are found to share cores and not only while they load data; else None."""
    found = next(
        (each for each in analysis.findings if each.id.startswith("shared_cores") and each.severity == "warning"), None
    )
    if found is None:
        return None
    most_share = found.evidence.get("most_share", waited_share(found.evidence))
    of_path = _share_of_path(analysis)
    if max(most_share, of_path) < WORTH:
        return None
    evidence = dict(found.evidence)
    recorded, capped = evidence.get("recorded_ns"), evidence.get("pauses_capped_ns")
    gain = None if recorded is None or capped is None else recorded - capped
    by_path = of_path if most_share < WORTH else None
    lost_ns = _waited_ns(analysis, waited_share(evidence) if by_path is None else by_path) if gain is None else gain
    return Recommendation(
        id="shared_cores",
        title=f"{_what(evidence)}; {_why(found, by_path)}",
        verdict="change",
        predicted_gain_ns=None,
        gain_low_ns=None if gain is None else 0,
        gain_high_ns=gain,
        confidence="mixed" if gain is not None else "measured",
        memory_bytes=None,
        changes_numerics=False,
        apply={
            "linux": "nproc; taskset -cp PID  # cores of the job, and of each rank: at least two a rank\n"
            "taskset -c FIRST-LAST python train.py  # for each rank, cores that no other rank has",
            "slurm": "srun --cpus-per-task=CORES_A_RANK --cpu-bind=cores python train.py",
            "container": "docker run --cpus=CORES ...  # Kubernetes: requests.cpu and limits.cpu, equal and whole",
            "torch": "export OMP_NUM_THREADS=CORES_A_RANK  # or torch.set_num_threads(); loaders need cores, too",
        },
        verify=VERIFY,
        per="step" if gain is None and analysis.headline.window == "step" else "recording",
        loss_ns=lost_ns,
        evidence=evidence,
        measured=[
            "how many hosts ran and paused at each moment, from the calls of all hosts"
            if found.known_from == "trace"
            else "how long training threads waited for a core, by the system's account"
        ],
        assumed=["that pauses would be cut to 3 ms, and that nothing else keeps that time"] if gain is not None else [],
    )


def _what(evidence: Mapping[str, Any]) -> str:
    """Return what to do: cores of their own, no other programs on them, or less to do."""
    if evidence.get("full_ranks"):
        whose = rank_list(evidence["full_ranks"])
        return f"Give the ranks more cores, or the threads of {whose} less to do: they fill a core"
    cores, ranks, alone = evidence.get("cores"), evidence.get("ranks", ()), list(evidence.get("concentrated_on", ()))
    their = "its" if len(alone) < 2 else "their"
    of = f": the hosts of {rank_list(ranks)} run on one" if cores == 1 else ""
    of = f": {len(ranks)} hosts run on about {cores}" if cores and cores > 1 else of
    what = f"Give {rank_list(alone) if alone else 'each rank'} cores of {their} own{of}"
    if "cores_of" in evidence or "others_ran_ns" in evidence:  # no two ranks may use the same core, or others ran there
        what = f"Keep other programs off the cores of {rank_list(alone) if alone else 'the ranks'}"
    limit = f", or lift a limit of {their} CPU time (which was not recorded)" if evidence.get("limit_unknown") else ""
    return f"{what}{limit}"


def _why(found: Finding, of_path: float | None) -> str:
    """Return who waited for a core, and how much; with the share of the critical path, where that is given."""
    evidence = found.evidence
    share, alone = waited_share(evidence), list(evidence.get("concentrated_on", ()))
    if share >= 1:
        return "the scheduler decides who is late"
    waited = "hosts that computed" if found.known_from == "trace" else "training threads"
    waited = waited if len(alone) != 1 else "its training thread"
    spread = "most_share" in evidence and not alone
    how_much = f"up to {percent_text(evidence['most_share'])}" if spread else percent_text(share)
    path = "" if of_path is None else f", and for {percent_text(of_path)} of the critical path of a typical step"
    return f"{waited} waited for one for {how_much} of the time{path}"


def _share_of_path(analysis: Analysis) -> float:
    """Return for which share of the critical path of a typical step its hosts waited for a core."""
    path = analysis.critical_path
    typical = next((each for each in path.steps if each.step == path.median_step), None)
    return typical.waited_for_core_ns / typical.length_ns if typical and typical.length_ns else 0.0


def _waited_ns(analysis: Analysis, share: float) -> int | None:
    """Return this share of the headline's step; None without one."""
    step_ns = analysis.headline.step_ns
    return None if step_ns is None or share >= 1 else round(share * step_ns)


def comes_first(each: Recommendation) -> bool:
    """Return whether it says that hosts share cores so much that it is to be mended first."""
    return each.id == "shared_cores" and decides_who_is_late(each.evidence)
