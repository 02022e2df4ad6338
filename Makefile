# elasticml: every target sets up what it needs. `make demo` and `make test` are all a newcomer needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
# One stamp per set of packages: the dependencies of elasticml, the tools of the tests, PyTorch.
STAMP := $(VENV)/.elasticml-installed
TEST_STAMP := $(VENV)/.elasticml-test-installed
TORCH_STAMP := $(VENV)/.elasticml-torch-installed
DOCS_STAMP := $(VENV)/.elasticml-docs-installed

# Tests start hundreds of Python processes; without bytecode files each would compile every module.
unexport PYTHONDONTWRITEBYTECODE

# One thread per process for numerical libraries: a run has many processes and its own threads.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export NUMBA_NUM_THREADS ?= 2
export PYTHONUNBUFFERED ?= 1

# The jar for the application master's process. It is built with Maven and a JDK; without it there are
# no notices of pre-emption, and everything else works.
AGENT := elasticml/clusters/yarn/elasticml-agent.jar

# The tests of a file run in one process; see tests/conftest.py. Slow ones wait for processes more than
# they compute: three share two cores.
TEST_PROCESSES ?= 2
SLOW_TEST_PROCESSES ?= 3
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder
# Run tests with their own temporary folder, because killed processes leave files there. It is removed
# unless a test failed.
define run-tests
folder=$$(mktemp -d); TMPDIR=$$folder $(PYTEST) $(1) $(PYTEST_ARGS) && rm -rf "$$folder" || { \
	status=$$?; echo "make: the files of the tests are in $$folder" >&2; exit $$status; }
endef
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=
STUDIES ?= $(sort $(wildcard examples/papers/*.py))
# Benches that need no arguments; python -m tests.bench lists all.
BENCHES ?= exchange first_fit first_round from_dask kmeans lasso_path linear_peers memory parsing passes round simulator_scale

YARN_ARGS ?=

.PHONY: help setup setup-test torch agent agent-where-possible yarn-up yarn-down yarn-demo demo test test-all lint format types docs studies bench-goodput chaos lanes release clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

# Extras of the tutorials, and of the names that the reference imports.
DOCS_EXTRAS := pandas,yarn
# Extras without which tests are skipped.
TEST_EXTRAS := dashboard,export,mlflow,pandas,prometheus,tensorboard,wandb,yarn

# Install this package with the given extras and dependency groups. uv takes seconds where pip takes a
# minute; it is kept outside the environment. If it is missing or fails (it does not read pip's
# configuration), pip installs; groups need pip 25.1.
define install
{ [ -x $(VENV)-uv/bin/uv ] || $(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(VENV)-uv uv; } \
	&& TMPDIR=$(abspath $(VENV)-uv) $(VENV)-uv/bin/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.$(1)' $(2) \
	|| { $(if $(2),$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1' &&) \
		$(BIN)/python -m pip install --disable-pip-version-check --editable '.$(1)' $(2); }
endef

setup: $(STAMP) ## Create the virtual environment and install elasticml into it, once.

$(BIN)/python:
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
	echo "make: creating the virtual environment $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { \
		echo "make: $$python cannot create a virtual environment; install its venv module (Debian: python3-venv)" >&2; \
		exit 1; \
	}

$(STAMP): pyproject.toml | $(BIN)/python
	@echo "make: installing elasticml and its dependencies: 0.8 GB on disk, only once"
	@$(call install,)
	@echo "make: compiling the kernels for this processor, only once"
	@$(BIN)/elasticml warm >/dev/null || echo "make: not compiled ahead; first fits will compile" >&2
	@touch $@

setup-test: $(TEST_STAMP)

$(TEST_STAMP): $(STAMP)
	@echo "make: installing the tools of the tests: 0.3 GB on disk, only once"
	@$(call install,[$(TEST_EXTRAS)],--group dev)
	@touch $@

torch: $(TORCH_STAMP) ## Install PyTorch, for local SGD: 5.4 GB on disk.

$(TORCH_STAMP): $(STAMP)
	@echo "make: installing PyTorch: 5.4 GB on disk, a few minutes, only once"
	@$(call install,[torch])
	@touch $@

$(DOCS_STAMP): $(STAMP)
	@echo "make: installing Sphinx: 0.2 GB on disk, only once"
	@$(call install,[$(DOCS_EXTRAS)],--group docs)
	@touch $@

agent: $(AGENT) ## Build and test the jar that forwards YARN's pre-emption notices (needs Maven and a JDK).

$(AGENT): yarn/agent/pom.xml $(shell find yarn/agent/src -type f)
	@echo "make: building the agent that forwards YARN's pre-emption notices"
	mvn --batch-mode --quiet -Dstyle.color=never --file yarn/agent/pom.xml package
	@mkdir -p $(@D)
	cp yarn/agent/target/elasticml-agent.jar $@

agent-where-possible:
	@if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then \
		[ -e $(AGENT) ] || echo "make: no notices from YARN without Maven and a JDK; install both (Debian: maven, default-jdk), then: make agent" >&2; \
	elif ! $(MAKE) --silent agent; then \
		echo "make: no notices from YARN: Maven could not build the agent, see above; everything else works" >&2; \
	fi

yarn-up: setup-test agent-where-possible ## Start Hadoop on this machine: YARN with queues ml and prod, and HDFS.
	$(BIN)/python -m yarn.mini up $(YARN_ARGS)

yarn-down: ## Stop Hadoop.
	$(BIN)/python -m yarn.mini down $(YARN_ARGS)

yarn-demo: setup-test agent-where-possible ## Run a job on it that loses half of its containers to another queue and gets them back.
	$(BIN)/python -m yarn.mini demo --out runs/yarn-demo $(DEMO_ARGS)

demo: setup ## Train on 14 workers, kill 7, restart them; plot and table in runs/demo.
	@$(BIN)/elasticml demo --out runs/demo $(DEMO_ARGS)

# With ALL set, a second run follows: it installs PyTorch and runs the remaining tests, those on a real
# YARN among them.
test: setup-test ## Run the tests in nine minutes; with ALL=1 all tests, with PyTorch.
	@$(call run-tests,-m "not slow")
ifdef ALL
	@$(MAKE) torch agent-where-possible
	@$(call run-tests,-m "slow or torch" -n $(SLOW_TEST_PROCESSES))
endif

test-all: ## Run all tests, including slow ones and those that need PyTorch.
	@$(MAKE) test ALL=1

lint: setup-test ## Check format and rules with ruff.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: setup-test ## Format the code, and fix what ruff can fix.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup-test ## Check the types with mypy.
	$(BIN)/mypy

# The tutorials run while it builds; any warning is an error.
docs: $(DOCS_STAMP) ## Build the site in docs/_build/html, without a network; run the tutorials on it.
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir docs/_build/doctrees docs docs/_build/html
	@echo "make: the site is docs/_build/html/index.html"

studies: setup-test ## Run all studies: the papers' figures and the benchmarks; takes hours.
	@for script in $(STUDIES); do \
		echo "== $$script"; \
		$(BIN)/python "$$script"; \
	done
	@for bench in $(BENCHES); do \
		echo "== $$bench"; \
		$(BIN)/python -m tests.bench $$bench; \
	done

bench-goodput: setup-test ## Compare goodput under pre-emption with other frameworks: 25 minutes, 6 GB of packages.
	@$(BIN)/python -m tests.bench goodput $(BENCH_ARGS)

chaos: setup-test ## Play fault plans: in the simulator for ten minutes, then 200 faults on processes in 40.
	@$(BIN)/python -m tests.play --on simulator --minutes 10 $(CHAOS_ARGS)
	@mkdir -p runs/chaos
	@$(BIN)/python -m tests.play --on local,nannies,stock,hosts,damaged --plans 35 --out runs/chaos/figures.json $(CHAOS_ARGS)
	@$(BIN)/python -m tests.play --on raising --out runs/chaos/raising.json

lanes: setup ## Run tests with the lowest and with the newest dependencies, each in its own environment.
	PATH="$(abspath $(VENV)-uv)/bin:$$PATH" $(VENV)-uv/bin/uv tool run nox --error-on-missing-interpreters --session lowest newest

release: setup ## Build sdist and wheel, check them, and try both on every Python here; uploads nothing.
	$(BIN)/python tools/release.py

clean: ## Remove the environment, caches and runs.
	rm -rf $(VENV) $(VENV)-uv .nox $(AGENT) yarn/agent/target build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis runs docs/_build docs/generated docs/tutorials/examples
	find elasticml tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
