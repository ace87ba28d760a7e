"""What a terminal shows, kept in golden files, and JSON under the published schemas."""

import json
from collections.abc import Callable

import jsonschema
import pytest

from overlapscope.analysis.compare.compare import compare
from overlapscope.analysis.compare.history import history
from overlapscope.analysis.compare.scaling import scaling
from overlapscope.report.formats import json as as_json
from overlapscope.report.sheet import scaling as scaling_text
from overlapscope.report.text import analysis as text
from overlapscope.report.text import compare as compare_text
from tests.conftest import ROOT
from tests.unit.analysis.compare.test_scaling import job_of, measured
from tests.unit.report.test_report import documents, small

pytestmark = pytest.mark.usefixtures("at_root")


def test_what_is_read_in_a_terminal_gives_its_golden_file(golden: Callable[[str, str], None]) -> None:
    run, comparison = documents()["run"], documents()["comparison"]
    golden("run_text.txt", text.render(run))  # type: ignore[arg-type]
    golden("comparison_text.txt", compare_text.render(comparison))  # type: ignore[arg-type]
    scaled = scaling([measured(job_of(2, [50], 30, 15), "two"), measured(job_of(4, [80], 30, 35), "four")])
    golden("scaling_text.txt", scaling_text.render(scaled))
    golden("scaling.json", as_json.render(scaled))
    golden("comparison.json", as_json.render(compare(small("a", 40), small("b", 60))))
    golden("history.json", as_json.render(history([*small("a", 40), *small("b", 60)])))


def test_json_is_valid_under_the_published_schemas() -> None:
    for document in documents().values():
        content = json.loads(as_json.render(document))
        name = content["schema"].removeprefix("overlapscope.").replace("/", "-")
        published = json.loads((ROOT / "docs" / f"overlapscope.{name}.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(published).validate(content)
