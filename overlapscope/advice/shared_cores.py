"""Rule: hosts share too few processor cores; it comes before a straggler, which may be the scheduler's choice."""

from typing import Final

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
    cores, ranks = evidence.get("cores"), evidence.get("ranks", ())
    recorded, capped = evidence.get("recorded_ns"), evidence.get("pauses_capped_ns")
    gain = None if recorded is None or capped is None else recorded - capped
    of = f": the hosts of {rank_list(ranks)} run on one" if cores == 1 else ""
    of = f": {len(ranks)} hosts run on about {cores}" if cores and cores > 1 else of
    share, alone = waited_share(evidence), list(evidence.get("concentrated_on", ()))
    whom = rank_list(alone) if alone else "each rank"
    waited = "hosts that computed" if found.known_from == "trace" else "training threads"
    waited = waited if len(alone) != 1 else "its training thread"
    spread = "most_share" in evidence and not alone
    how_much = f"up to {percent_text(evidence['most_share'])}" if spread else percent_text(share)
    why = f"{waited} waited for one for {how_much} of the time"
    if most_share < WORTH:  # it is worth saying by the path alone
        why = f"{why}, and for {percent_text(of_path)} of the critical path of a typical step"
    if share >= 1:
        why = "the scheduler decides who is late"
    what = f"Give {whom} cores of {'its' if len(alone) < 2 else 'their'} own{of}"
    if "cores_of" in evidence or "others_ran_ns" in evidence:  # no two ranks may use the same core, or others ran there
        what = f"Keep other programs off the cores of {rank_list(alone) if alone else 'the ranks'}"
    if evidence.get("limit_unknown"):
        what += f", or lift a limit of {'its' if len(alone) < 2 else 'their'} CPU time (which was not recorded)"
    if evidence.get("full_ranks"):
        whose = rank_list(evidence["full_ranks"])
        what = f"Give the ranks more cores, or the threads of {whose} less to do: they fill a core"
    return Recommendation(
        id="shared_cores",
        title=f"{what}; {why}",
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
        loss_ns=gain if gain is not None else _waited_ns(analysis, of_path if most_share < WORTH else share),
        evidence=evidence,
        measured=[
            "how many hosts ran and paused at each moment, from the calls of all hosts"
            if found.known_from == "trace"
            else "how long training threads waited for a core, by the system's account"
        ],
        assumed=["that pauses would be cut to 3 ms, and that nothing else keeps that time"] if gain is not None else [],
    )


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
