"""The Dash application; installed as `overlapscope_dashboards`."""
