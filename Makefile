# `make demo` tunes the example, `make test` checks and tests everything.
# Each first sets up what it needs, in .venv; that takes a few minutes once.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/set-up
PYTHON ?= python3.11
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
# planners, infra and profiles are linked into cloudtune/; ruff follows no links.
SOURCE := cloudtune planners infra profiles tests examples benchmarks docs

.DEFAULT_GOAL := help
.PHONY: help setup metadata demo demo-crash test walks quick check lint gpu format docs check-strategies clean

help:
	@echo "make demo     tune an example on the emulated cloud, and hold its bill and its model against"
	@echo "              others (5 minutes, no account needed); make demo-crash kills it in the middle"
	@echo "make test     run the checks and the tests; with WALKS=1 the long walks too"
	@echo "make walks    run the long walks alone: a company's account from nothing, other libraries, …"
	@echo "make quick    run what needs no cluster, no emulated machine and no other process (3 minutes)"
	@echo "make check    run the checks alone (ruff, mypy, import contracts, layout), and print how many"
	@echo "              lines of code and words of docs there are"
	@echo "make gpu      run what needs an NVIDIA GPU: its tests, and benchmarks/gpu (without one: as far"
	@echo "              as a CPU goes); GPU_OUT=FILE.json keeps the results, GPU_OLD=FILE.json is compared"
	@echo "make format   let ruff put the code in order"
	@echo "make docs     write docs/reference.md and the README's screen again, from the code; with"
	@echo "              RUN=NAME also the README's picture, from that run"
	@echo "make check-strategies  compare the search with its peers (DATA=FOLDER of curves): minutes"
	@echo "make clean    remove .venv and all caches"

setup: $(STAMP)

# The stamp is written last: without one, whatever is in .venv is half-made and goes; an old one
# stays until pip is through, so that what was interrupted is done again.
$(STAMP): pyproject.toml constraints.txt
	@test -e $@ || { echo "Setting up $(VENV): a few minutes, once."; $(MAKE_VENV); }
	@$(PIP) install -c constraints.txt setuptools
	@$(PIP) install -c constraints.txt --no-build-isolation --editable '.[dev,examples]'
	@touch $@

# In a worktree that borrows another checkout's .venv, with PYTHONPATH=.package:. : the names that
# entry points add are this worktree's then. An install has its own.
metadata:
	@$(BIN)/python -W ignore -c 'import setuptools; setuptools.setup()' -q egg_info 2>/dev/null

MAKE_VENV = for each in $(PYTHON) python3 python; do \
    if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
        $$each -m venv --clear $(VENV); exit; \
    fi; \
done; \
echo "cloudtune needs Python 3.11 or later; name one: make PYTHON=/path/to/python" >&2; exit 1

demo: $(STAMP)
	$(BIN)/cloudtune run examples/smudged/experiment.yaml
	$(BIN)/cloudtune report --against
	$(BIN)/python examples/smudged/score.py
	@echo
	@echo "Next: . $(BIN)/activate && cloudtune plan examples/smudged/experiment.yaml"

demo-crash: $(STAMP)
	$(BIN)/python examples/smudged/crash.py

check: $(STAMP)
	$(BIN)/pytest -q tests/architecture
	@$(BIN)/python -m tests.architecture.budget

# What tests/architecture/test_checks.py runs, while other tests wait.
lint: $(STAMP)
	$(BIN)/ruff check --quiet $(SOURCE)
	$(BIN)/ruff format --check --quiet $(SOURCE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Hundreds of processes import the same sources, and pytest rewrites those of the tests: once.
test walks quick: export PYTHONDONTWRITEBYTECODE :=

# Two workers begin with whole runs, which wait most of the time, two with all other tests
# (tests/conftest.py).
PARALLEL := --numprocesses=4 --no-loadscope-reorder

# With STATUS=FILE the exit code of pytest goes there, and its closing line stays the last one.
test: $(STAMP)
	@$(BIN)/pytest $(PARALLEL) $(if $(STATUS),; echo $$? >'$(STATUS)')

# Tests that are marked `walk`. A name given to make is in the environment of what it runs, so
# `make test WALKS=1` has them too.
walks: export WALKS := 1
walks: $(STAMP)
	@$(BIN)/pytest -m walk -q $(PARALLEL)

# What is left out, and why: tests/quick.py.
quick: $(STAMP)
	@$(BIN)/pytest --quick -q -r fE --numprocesses=2 --no-loadscope-reorder

# A step at a time: `python -m benchmarks.gpu STEP`, each under ten minutes. What fails in one doesn't
# keep the others from being run. GPU_PYTHON: one whose torch knows the GPU, if that isn't ours; of
# cloudtune's dependencies it needs psutil and pyarrow, and steps that need more say so.
GPU_PYTHON ?= $(BIN)/python
GPU_OUT ?= gpu-results.json
gpu: export PYTHONPATH := .package:.:$(PYTHONPATH)
gpu: $(if $(filter $(BIN)/%,$(GPU_PYTHON)),$(STAMP))
	$(GPU_PYTHON) -m pytest -q -m gpu --noconftest -W default tests/gpu \
		tests/train/test_session.py tests/infra/node/test_mps.py; tests=$$?; \
	$(GPU_PYTHON) -m benchmarks.gpu all --out $(GPU_OUT); steps=$$?; \
	$(if $(GPU_OLD),$(GPU_PYTHON) -m benchmarks.gpu compare $(GPU_OLD) $(GPU_OUT);) \
	exit $$((tests + steps))

# Before and after each change of a strategy; both tables go into the commit message.
DATA ?= -
CHECKED := build/strategies
check-strategies: $(STAMP)
	rm -rf $(CHECKED)
	$(BIN)/python -m benchmarks.strategies $(DATA) --quick --out $(CHECKED)

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCE)
	$(BIN)/ruff format $(SOURCE)

docs: $(STAMP)
	$(BIN)/python -m docs.reference
	$(BIN)/python -m docs.screen
	$(if $(RUN),$(BIN)/python -m docs.picture $(RUN))

clean:
	rm -rf $(VENV) build dist *.egg-info .package/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
