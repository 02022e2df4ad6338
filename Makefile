# elasticml: every target sets up what it needs. `make demo` and `make test` are all a newcomer needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.elasticml-installed
TORCH_STAMP := $(VENV)/.elasticml-torch-installed

# One thread a process for the libraries: a run has many processes, and its own threads besides.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export NUMBA_NUM_THREADS ?= 2
export PYTHONUNBUFFERED ?= 1

# What the application master's process is given; where there is neither Maven nor a JDK, notices of
# pre-emption are missing and all else works.
AGENT := elasticml/clusters/on_yarn/elasticml-agent.jar

PYTEST_ARGS ?=
DEMO_ARGS ?=
STUDIES ?= $(sort $(wildcard examples/papers/*.py tests/bench/*.py))

YARN_ARGS ?=

.PHONY: help setup torch agent agent-where-possible yarn-up yarn-down yarn-demo demo test lint format types studies clean

help: ## Show what can be made.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(STAMP) agent-where-possible ## Create the virtual environment and install elasticml into it, once.

$(STAMP): pyproject.toml
	@python=""; \
	for candidate in $${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			python=$$candidate; break; \
		fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "make: found no Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	if [ ! -x $(BIN)/python ]; then \
		"$$python" -m venv $(VENV) || { \
			echo "make: $$python cannot create a virtual environment; install its venv module (Debian: python3-venv)" >&2; \
			exit 1; \
		}; \
	fi
	@echo "make: installing elasticml and what it needs into $(VENV): a minute or a few, only once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $(STAMP)

torch: $(TORCH_STAMP) ## Install PyTorch, too, for local SGD: 3 GB to load, 5.4 GB on disk.

$(TORCH_STAMP): $(STAMP)
	@echo "make: installing PyTorch into $(VENV): 3 GB, a few minutes, only once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch]'
	@touch $(TORCH_STAMP)

agent: $(AGENT) ## Build and test the jar that brings YARN's notices (needs Maven and a JDK).

$(AGENT): yarn/agent/pom.xml $(shell find yarn/agent/src -type f)
	mvn --batch-mode --quiet -Dstyle.color=never --file yarn/agent/pom.xml package
	@mkdir -p $(@D)
	cp yarn/agent/target/elasticml-agent.jar $@

agent-where-possible: $(STAMP)
	@if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then \
		[ -e $(AGENT) ] || echo "make: no notices from YARN: found no Maven and JDK; install both (Debian: maven, default-jdk), then: make agent" >&2; \
	elif ! $(MAKE) --silent agent; then \
		echo "make: no notices from YARN: Maven could not build the agent, see above; all else works" >&2; \
	fi

yarn-up: setup ## Start a real Hadoop on this machine: YARN with queues ml and prod, and HDFS.
	$(BIN)/elasticml mini-yarn up $(YARN_ARGS)

yarn-down: ## End it.
	$(BIN)/elasticml mini-yarn down $(YARN_ARGS)

yarn-demo: setup ## See a job on it lose half of its containers to another queue and get them back.
	$(BIN)/elasticml mini-yarn demo --out runs/yarn-demo $(DEMO_ARGS)

demo: setup ## Train on 14 workers, kill 7, bring them back; picture and table in runs/demo.
	$(BIN)/elasticml demo --out runs/demo $(DEMO_ARGS)

test: setup ## Run every test.
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: setup ## Check the format and the rules of ruff.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: setup ## Write the format, and fix what ruff can fix.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup ## Check the types with mypy.
	$(BIN)/mypy

studies: setup ## Run the heavy studies one after the other: the papers' figures, the benchmarks.
	@for script in $(STUDIES); do \
		echo "== $$script"; \
		$(BIN)/python "$$script"; \
	done

clean: ## Remove what was built here: environment, caches, runs.
	rm -rf $(VENV) $(AGENT) yarn/agent/target build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis runs
	find elasticml tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
