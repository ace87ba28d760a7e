"""Two runs beside each other: parts that add up, verdicts that are the gate's, and what cannot be compared."""

from pathlib import Path

import pytest

from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import judge
from overlapscope_dashboards import router
from overlapscope_dashboards.comparison import compare_address
from overlapscope_dashboards.site import Site, query_of
from overlapscope_dashboards.views import comparison as view
from tests.builders import replicate_of
from tests.dashboard_runs import folder_of_runs, ids, words
