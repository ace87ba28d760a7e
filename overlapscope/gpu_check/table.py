"""The checks as a table: text for a terminal, Markdown for `benchmarks/GPU.md`."""

from typing import Final

from overlapscope.gpu_check.document import CheckResult, GpuCheck, Judged, Rule, Verdict, shown

VERSIONS: Final = (
    ("device", ""), ("devices", "devices"), ("driver", "driver"), ("cuda", "CUDA"), ("nccl", "NCCL"),
    ("torch", "torch"), ("python", "Python"),
)  # fmt: skip


def as_text(document: GpuCheck) -> str:
    """Return a line a check, with the figures that were not accepted below it."""
    width = max(len(each.title) for each in document.checks)
    lines = [_machine(document), ""]
    for each in document.checks:
        seconds = f"{each.seconds:5.0f} s" if each.seconds else ""
        lines.append(f"{each.verdict:8}  {each.name:4}  {each.title.ljust(width)}  {seconds}".rstrip())
        if each.reason:
            lines += [f"{'':16}{part}" for part in each.reason.split("; ")]
    return "\n".join([*lines, "", _counted(document)]) + "\n"


def as_markdown(document: GpuCheck) -> str:
    """Return a table with every acceptance figure."""
    lines = [
        "# What a GPU shows", "",
        "Written by `make gpu-check`, which runs `overlapscope doctor --gpu` "
        "([what the checks are](../docs/gpu_check.md)).",
        "", f"{document.date}, OverlapScope {document.overlapscope}: {_machine(document)}.", "", _counted(document), "",
        "| check | shows | figure | measured | wanted | verdict |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for each in document.checks:
        rows = each.rules or (None,)
        for at, rule in enumerate(rows):
            head = [f"{each.name} {each.title}", each.shows] if at == 0 else ["", ""]
            lines.append(_row([*head, *_cells(each, rule)]))
    reasons = [f"- {each.name} {each.verdict}: {_plain(each.reason)}" for each in document.checks if each.reason]
    return "\n".join([*lines, *(["", *reasons] if reasons else [])]) + "\n"


def _cells(check: CheckResult, rule: Judged | None) -> list[str]:
    if rule is None:
        return ["", "", "", check.verdict]
    limits = Rule(figure=rule.figure, means=rule.means, at_least=rule.at_least, at_most=rule.at_most, unit=rule.unit)
    return [rule.means, shown(rule.value, rule.unit), limits.wanted, rule.verdict]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(_plain(each).replace('|', chr(92) + '|') for each in cells)} |"


def _plain(text: str) -> str:
    """Return text on one line, of a length that a table bears."""
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:397]}..."


def _machine(document: GpuCheck) -> str:
    stated = {name: value for name, value in document.versions.items() if (name, value) != ("devices", 1)}
    known = [(word, stated[name]) for name, word in VERSIONS if name in stated]
    return ", ".join(f"{value} {word}" if word == "devices" else f"{word} {value}".strip() for word, value in known)


def _counted(document: GpuCheck) -> str:
    words: tuple[Verdict, ...] = ("accepted", "refused", "not run")
    return f"{', '.join(f'{document.count(each)} {each}' for each in words)}."
