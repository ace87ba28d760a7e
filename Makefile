# Two commands on a fresh clone with Python >= 3.11 and make: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than CI has cores: many tests wait for processes that they started.
WORKERS ?= 3
# Some images forbid it to Python: then each of the thousands of processes of the tests would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

# A Python of a version: pyenv's, else that on the path. 3.11 is PYTHON.
PYTHONS ?= 3.12 3.13 3.14
python_of = $(or $(firstword $(wildcard $(HOME)/.pyenv/versions/$(1).*/bin/python)),python$(1))
READY313 := $(if $(shell $(call python_of,3.13) --version 2>/dev/null),.venv313/.ready)

# Where pip also looks for torch, for one without CUDA; empty for PyPI alone.
TORCH_INDEX ?=
comma := ,

.PHONY: demo test test-all lint bench docs gpu-check test-long test-extras mutants test-versions test-pinned test-torch \
  test-lowest test-pythons test-hosts test-py313 check-wheel release schema clean

demo: $(READY)
	$(BIN)/overlapscope demo -f
	@echo "(once, before that: . $(BIN)/activate)"

SELECTED := not long and not slow
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "$(SELECTED)"

# And what is marked `slow`: jobs, browsers and drawn recordings beyond those that `make test` has of each kind. Under
# `make -j2` the wheel is built beside the tests, many of which wait for each other's processes.
test-all:
	$(MAKE) test check-wheel SELECTED="not long"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build/typed && ln -sfn ../../dashboards build/typed/overlapscope_dashboards
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tests/check_house.py
	$(BIN)/reuse lint --lines
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml examples/ci/github*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-actions action.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/check-jsonschema -q --builtin-schema vendor.gitlab-ci examples/ci/gitlab.yml

# Ratios, measured in one run and interleaved; writes benchmarks/RESULTS.md.
bench: $(READY)
	$(BIN)/python -m benchmarks.run

# Ten minutes on one GPU; writes benchmarks/GPU.md. Without a GPU it says so, and the page stays.
gpu-check: $(READY)
	rm -rf build/gpu-check
	$(BIN)/overlapscope doctor --gpu -o build/gpu-check; code=$$?; \
	  if test -f build/gpu-check/gpu_check.md; then cp build/gpu-check/gpu_check.md benchmarks/GPU.md; fi; exit $$code

# What takes more than minutes; its last dated result is kept in tests/LONG.md.
test-long: $(READY)
	$(BIN)/python -m tests.run_long

# The adapters and dry runs inside the real frameworks, each in two processes over gloo; a run in a real notebook, and its
# figures in real trackers. HOSTS=transformers takes those of one. Torchtitan is large and needs another fsspec than
# constraints.txt has: it is installed where all are tried.
HOSTS ?= not none
test-extras: .venv-extras/.ready $(if $(filter not none,$(HOSTS)),.venv-extras/.titan .venv-extras/.trackers)
	.venv-extras/bin/python -m pytest -q -n $(WORKERS) -m extras -k "$(HOSTS)" \
	  tests/integration/test_real_hosts.py tests/integration/test_dry_hosts.py tests/integration/test_notebook.py \
	  tests/integration/test_trackers.py

.venv-extras/.titan: .venv-extras/.ready
	.venv-extras/bin/python -m pip install -q 'torchtitan==0.3.*' triton
	@touch $@

# MLflow needs an older importlib_metadata than constraints.txt has.
.venv-extras/.trackers: .venv-extras/.ready
	.venv-extras/bin/python -m pip install -q -e '.[trackers]'
	@touch $@

# The arithmetic changed, one expression at a time: do its tests fail? Hours for all of it; `make mutants CHUNK=gate` takes
# the modules of tests/mutants.toml with that word in their path. Its last dated results are kept in tests/MUTANTS.md.
mutants: $(VENV)/.mutants
	nice $(BIN)/python -m tests.run_mutants $(CHUNK)

# The tests that record, with the oldest torch that is promised and the newest there is; all tests with the lowest of all
# dependencies, and with those of constraints.txt; all on each later Python, on the newest with torch (PYTHONS=3.14 runs one
# of them); and what `make test-extras` runs. What ran is kept in overlapscope/version_runs.json and shown in docs/versions.md. An hour and more on two cores.
test-versions: test-lowest test-pinned test-torch test-pythons test-hosts

test-pinned: $(READY)
	$(BIN)/python -m tests.run_versions run pinned -n $(WORKERS)

test-torch: .venv-torch-oldest/.ready .venv-torch-dry-runs/.ready .venv-torch-newest/.ready
	.venv-torch-oldest/bin/python -m tests.run_versions run torch-oldest -n $(WORKERS)
	.venv-torch-dry-runs/bin/python -m tests.run_versions run torch-dry-runs -n $(WORKERS)
	.venv-torch-newest/bin/python -m tests.run_versions run torch-newest -n $(WORKERS)

test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/python -m tests.run_versions run lowest -n $(WORKERS)

test-pythons: $(PYTHONS:%=.venv-python-%/.ready)
	for version in $(PYTHONS); do \
	  .venv-python-$$version/bin/python -m tests.run_versions run python-$$version -n $(WORKERS) || exit; \
	done

test-hosts: .venv-extras/.titan
	.venv-extras/bin/python -m tests.run_versions run hosts -n $(WORKERS) tests/integration/test_real_hosts.py

# The pages of docs/ and a reference from the code, as a site in dashboards/site/: the wheel takes it from there.
docs: $(READY)
	$(BIN)/python -m docs.site.build

# A wheel, installed in an empty environment without torch, analyzes a trace and has the documentation.
check-wheel: docs
	$(BIN)/python tests/check_wheel.py

# What is uploaded, in dist/: built, checked, installed on every Python there is, README's commands run from there; then
# the unpacked sdist runs its own tests, which takes as long as `make test` (SDIST_TESTS="gpu" leaves nearly all of them out).
SDIST_TESTS ?= not long and not slow
release: $(VENV)/.release docs
	$(BIN)/python tests/check_release.py -n $(WORKERS) -m "$(SDIST_TESTS)"

# On Python 3.13 without torch, where there is such a Python: what tells Pythons apart, which is files, processes, text and
# the command line. Figures come from numpy and are the same; what looks for faults of ours runs once, in `make test`.
TELLS_PYTHONS_APART := inputs/test_archives \
  cli/test_cli \
  cli/test_cli_endings \
  cli/test_compare_cli \
  parallel/test_worker_count \
  timeline/test_facts \
  report/test_formats \
  cli/test_gate_cli \
  report/test_html \
  formats/test_nsight \
  merge/test_one_run \
  formats/test_safe_pickle \
  cli/test_pytest_plugin \
  formats/test_readers \
  report/test_report \
  formats/test_rocprof \
  timeline/test_store \
  parsing/test_timestamps \
  formats/test_topology \
  cli/test_whatif_cli \
  parallel/test_write_run
test-py313: $(READY313)
	@if test -n "$(READY313)"; then \
	  HYPOTHESIS_PROFILE=quick .venv313/bin/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not torch and not long and not slow" \
	    $(foreach name,$(TELLS_PYTHONS_APART),tests/unit/$(name).py); \
	else echo "test-py313: there is no python3.13 here; not run"; fi

# The published JSON Schemas, from the code.
schema: $(READY)
	for name in analysis comparison whatif gate history scaling fleet floor chain price; do \
	  $(BIN)/python -m overlapscope.report.formats.json $$name > docs/overlapscope.$$name-1.schema.json; \
	done

# Modules are compiled when first imported: of large packages, few are.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OverlapScope needs Python 3.11 or later; say PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[torch,dev]'
	@touch $(READY)

$(VENV)/.mutants $(VENV)/.release: $(VENV)/.%: $(READY)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[$*]'
	@touch $@

# After the other environment, never beside it: both build in this tree.
.venv313/.ready: pyproject.toml constraints.txt | $(READY)
	test -x .venv313/bin/python || $(call python_of,3.13) -m venv .venv313
	.venv313/bin/python -m pip install -q --no-compile -c constraints.txt -e . pytest pytest-xdist hypothesis jsonschema
	@touch $@

.venv-extras/.ready: pyproject.toml constraints.txt | $(READY)
	test -x .venv-extras/bin/python || $(PYTHON) -m venv .venv-extras
	.venv-extras/bin/python -m pip install -q --no-compile -c constraints.txt -e '.[torch,hosts,notebook-tests]' \
	  pytest pytest-xdist hypothesis
	@touch $@

# The same holds for these, of which pyproject.toml alone says the versions.
OTHERS := lowest torch-oldest torch-dry-runs torch-newest $(PYTHONS:%=python-%)
WITH_TORCH := lowest torch-oldest torch-dry-runs torch-newest python-3.14
$(OTHERS:%=.venv-%/.ready): .venv-%/.ready: pyproject.toml | $(READY)
	test -x .venv-$*/bin/python || \
	  $(if $(filter python-%,$*),$(call python_of,$(*:python-%=%)),$(PYTHON)) -m venv .venv-$*
	$(PYTHON) -m tests.run_versions constraints $* > .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install -q -U $(addprefix --extra-index-url ,$(TORCH_INDEX)) -c .venv-$*/constraints.txt \
	  -e '.[$(if $(filter $(WITH_TORCH),$*),torch$(comma))cluster,remote,dev]' setuptools
	@touch $@

clean:
	rm -rf $(VENV) .venv313 .venv-* build dist dashboards/site *.egg-info overlapscope-demo benchmarks/.cache
