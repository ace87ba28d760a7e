"""The documentation site: Markdown of docs/ and a reference from the code, as pages that load nothing from elsewhere.

`make docs` builds it into `dashboards/site/`, from where the wheel takes it and `overlapscope serve` shows it.
"""
