"""Options that price a dry run: the device, its links, what a dry run does not show, and measured steps."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from overlapscope.analysis.result import Analysis
    from overlapscope.timeline.run import Run
    from overlapscope.whatif.pricing.calibration import Measured
    from overlapscope.whatif.pricing.prices import PricedRun, Terms

_MEASURED: Final = re.compile(
    r"(?:(?P<dry_run>[^=:@]+)=)?(?P<step>[^=:@]+)(?::(?P<recipe>[^@]*))?(?:@(?P<device>[\w.-]+))?"
)
_TIME: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s)")
_NS: Final = {"ms": 1e6, "s": 1e9}


def add_price_options(parser: argparse.ArgumentParser) -> None:
    """Add `--device`, `--links`, `--recipe` and `--calibrate`."""
    parser.add_argument("--device", metavar="NAME", help="price a dry run for this device, such as h100-sxm")
    parser.add_argument(
        "--links", metavar="INSIDE[,BETWEEN]", help="links inside a node and between nodes: 8xh100-nvswitch,roce-400; "
        "for the first also a table of nccl-tests",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", metavar="WORD,...", default=None,
        help="what a dry run does not show: compile[=MODULES], float8=tensorwise|rowwise, async-tp",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate", metavar="[DRYRUN=]STEP[:RECIPE][@DEVICE]", action="append", default=[],
        help="a measured step, as 2843ms or a recorded run, of this dry run or of another",
    )  # fmt: skip


def require_price_options(args: argparse.Namespace) -> bool:
    """Return whether a price is asked for. Raises UsageError for incomplete options and unknown names."""
    if args.device and args.links:
        _named(args)
        return True
    if args.device:
        raise UsageError("--device needs --links, such as 8xh100-nvswitch,roce-400")
    given = [name for name in ("links", "recipe", "calibrate") if getattr(args, name)]
    if given:
        raise UsageError(f"--{given[0]} needs --device, such as h100-sxm")
    return False


def priced(run: "Run", args: argparse.Namespace) -> "PricedRun":
    """Return the prices of a dry run. Raises UsageError and InputError."""
    from overlapscope.whatif.pricing.links import with_recorded  # noqa: PLC0415
    from overlapscope.whatif.pricing.prices import price_run  # noqa: PLC0415 - keeps --help light

    terms = _named(args)
    for text in args.calibrate:
        step, recorded = _measured(text, run, args.recipe or "", args.device)
        links = with_recorded(terms.links, recorded.collectives) if recorded and not step.device else terms.links
        terms = msgspec.structs.replace(terms, links=links, measured=(*terms.measured, step))
    return price_run(run, terms)


def _named(args: argparse.Namespace) -> "Terms":
    """Return what is priced for, without measured steps."""
    from overlapscope.whatif.pricing.devices import device  # noqa: PLC0415
    from overlapscope.whatif.pricing.links import links  # noqa: PLC0415
    from overlapscope.whatif.pricing.prices import Terms  # noqa: PLC0415
    from overlapscope.whatif.pricing.recipe import parse_recipe  # noqa: PLC0415

    return Terms(device=device(args.device), links=links(args.links), recipe=parse_recipe(args.recipe or ""))


def _measured(text: str, run: "Run", recipe: str, device_key: str) -> "tuple[Measured, Analysis | None]":
    """Return a measured step, and what was recorded of it where it was."""
    from overlapscope.whatif.pricing.calibration import Measured  # noqa: PLC0415
    from overlapscope.whatif.pricing.devices import device  # noqa: PLC0415
    from overlapscope.whatif.pricing.program import program_of  # noqa: PLC0415
    from overlapscope.whatif.pricing.recipe import parse_recipe  # noqa: PLC0415

    found = _MEASURED.fullmatch(text)
    if found is None:
        raise UsageError(f"--calibrate {text}: must be [DRYRUN=]STEP[:RECIPE][@DEVICE], such as dry8=2843ms:compile")
    described = run if found["dry_run"] is None else _read(found["dry_run"])
    other = found["device"]
    step_ns, recorded, work_ns = _step(found["step"])
    measured = Measured(
        program=program_of(described, min(described.ranks)),
        recipe=parse_recipe(recipe if found["recipe"] is None else found["recipe"]),
        step_ns=step_ns,
        work_ns=work_ns,
        source=text,
        device=device(other) if other and other != device_key else None,
    )
    return measured, recorded


def _step(text: str) -> "tuple[float, Analysis | None, Mapping[int, float]]":
    """Return a stated step, or the median step of a recorded run with its analysis and the times of its kernels."""
    time = _TIME.fullmatch(text)
    if time is not None:
        step_ns = float(time["number"]) * _NS[time["unit"]]
        if not step_ns:
            raise UsageError(f"--calibrate {text}: a step takes more than 0")
        return step_ns, None, {}
    if not Path(text).exists():
        raise UsageError(f"--calibrate {text}: no such run, and no time such as 2843ms or 2.843s")
    from overlapscope.analysis.analyze import analyze  # noqa: PLC0415
    from overlapscope.whatif.pricing.recorded_work import recorded_work  # noqa: PLC0415

    run = _read(text)
    found = analyze(run)
    if found.headline is None or found.headline.step_ns is None:
        raise InputError(f"--calibrate {text}: has no complete step to calibrate with; record one with steps")
    first = found.ranks[0]
    complete = [each.step for each in first.steps if each.complete]
    return float(found.headline.step_ns), found, recorded_work(run.ranks[first.rank], complete)


def _read(path: str) -> "Run":
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

    return read_inputs([Path(path)])
