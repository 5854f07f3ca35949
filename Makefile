# Millgate: `make run` starts a gate over an embedded engine, `make test` runs every check and test.
# Both install what they need first, once per change of the lock file; nothing after that uses the network.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install packages compiled interpreted fresh run check static test test-compiled explore test-engines bench soak fuzz validate figures rules dist lowest lock docs docs-serve clean

VENV := .venv
# Runs of each arm of an experiment in `make figures`.
SEEDS ?= 5
# What `make soak` and `make fuzz` throw their dice with.
SEED ?= 1
# With this variable set nothing is compiled: hatch_build.py.
INTERPRETED := MILLGATE_INTERPRETED
# What touches each library that users get: command line, configuration, doors, metrics, client, simulator.
SMOKE := tests/cli tests/config tests/client tests/observe tests/library tests/servers/admin tests/gateway/test_serve.py tests/sim/test_randomness.py tests/sim/report
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Interpreters on this machine that are new enough, best first. One that is a single executable goes first: it runs
# the same code faster than one that calls into a shared libpython.
INTERPRETERS = python3.11 python3.12 python3.13 python3 /usr/bin/python3.11 /usr/bin/python3
FIND_PYTHON = for test in 'assert "libpython" not in open("/proc/self/maps").read()' 'pass'; do \
	for name in $(INTERPRETERS); do \
	if $$name -c "import sys, venv; assert sys.version_info >= (3, 11); $$test" \
	2>/dev/null; then echo $$name; break 2; fi; done; done
# Debian's interpreter comes without ensurepip; any other interpreter's pip can then install for it.
FIND_PIP = for name in $(INTERPRETERS); do \
	if $$name -m pip --python $$name --version >/dev/null 2>&1; then echo $$name; break; fi; done

help: ## list these targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

install: packages compiled ## create .venv, install exactly what requirements.lock names, compile the hot path

packages: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@if [ ! -x $(BIN)/python ]; then \
		python=$$($(FIND_PYTHON)); \
		if [ -z "$$python" ]; then \
			echo "Millgate needs Python 3.11 or newer. On Debian: apt-get install python3 python3-venv" >&2; exit 1; fi; \
		echo "install: creating $(VENV) with $$($$python --version)"; \
		if $$python -c 'import ensurepip' 2>/dev/null; then $$python -m venv $(VENV); \
		elif [ -n "$$($(FIND_PIP))" ]; then $$python -m venv --without-pip $(VENV); \
		else version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
			echo "$$python cannot make environments yet. On Debian: apt-get install python$$version-venv" >&2; exit 1; fi; \
	fi
	@echo "install: $$(grep -c '^[a-z]' requirements.lock) packages at the exact versions and hashes of requirements.lock"
	@pip="$(BIN)/python -m pip"; $(BIN)/python -c 'import pip' 2>/dev/null || pip="$$($(FIND_PIP)) -m pip --python $(BIN)/python"; \
		$$pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock; \
		echo "install: millgate itself, editable"; \
		$(INTERPRETED)=1 $$pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)
	@echo "install: done; the network is not needed any more"

compiled: packages ## compile what every request passes: a few minutes, where there is a C compiler
	@$(BIN)/python hatch_build.py compile

interpreted: packages ## take the compiled modules away: everything runs from its source
	@$(BIN)/python hatch_build.py remove

# What was compiled from older sources must not be what is tested.
fresh: packages
	@$(BIN)/python hatch_build.py fresh

run: packages fresh ## a gate on 127.0.0.1:8080 in front of an embedded engine
	@$(BIN)/millgate run

static: packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test-compiled: compiled ## every test once more, on what is compiled
	$(BIN)/pytest -n 2 --dist loadfile --max-worker-restart 1 -m "not engines" --durations=15

check: static fresh ## lint, format, types, import rules, size budgets
	$(BIN)/pytest tests/architecture

test: static fresh ## every check, then every test
	$(BIN)/pytest -n 2 --dist loadfile --max-worker-restart 1 -m "not engines" --durations=15

explore: packages ## every test with examples that nobody has tried yet, on what is compiled or not, as it lies here
	$(BIN)/pytest -n 2 --dist loadfile --max-worker-restart 1 -m "not engines" --hypothesis-profile=explore

test-engines: packages fresh ## the gate before real engines that you have; docs/how-to says how to have one
	$(BIN)/pytest -n 0 -rs tests/engines

bench: install ## CPU per request, chunk and yield beside HAProxy and nginx
	@$(BIN)/python -m bench $(BENCH)

soak: packages fresh ## a gate between users and engines that do everything wrong, scene by scene, for SECONDS=600 with SEED=1
	@PYTHONPATH=tests $(BIN)/python -m faults.stalled
	@PYTHONPATH=tests $(BIN)/python -m faults.soak --seconds $(or $(SECONDS),600) --seed $(SEED)

fuzz: packages fresh ## mutated requests, then mutated answers of an engine, for SECONDS=300 with SEED=1; what does harm is kept in build/fuzz
	@PYTHONPATH=tests $(BIN)/python -m faults.fuzz --seconds $(or $(SECONDS),300) --seed $(SEED)

validate: install ## the governor against closed forms, in virtual time; some minutes on every processor
	@$(BIN)/python -m lab validate

docs: packages ## the pages of docs/ as a site in build/site
	$(BIN)/mkdocs build --strict

docs-serve: packages ## the same site on 127.0.0.1:8010, built anew after each change
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8010

figures: install ## draw the two pictures of the README anew; some minutes on every processor
	@$(BIN)/python -m lab run no_gate_vs_gate --seeds $(SEEDS) --svg docs/pictures/no_gate_vs_gate.svg
	@$(BIN)/python -m lab run retry_storm --seeds $(SEEDS) --svg docs/pictures/retry_storm.svg

RULES := deploy/prometheus/millgate.rules.yaml
OPERATOR_RULES := deploy/kubernetes/components/monitoring/rules.yaml

rules: ## write the alert rules once more, as the Prometheus operator reads them
	@head="$$(sed '/^spec:/q' $(OPERATOR_RULES))"; \
		{ echo "$$head"; sed -n '/^groups:/,$$ { s/^\(.\)/  \1/; p }' $(RULES); } > $(OPERATOR_RULES)

dist: packages ## sdist and compiled wheel in dist/, the wheel tried in an empty environment outside the checkout (uses the network)
	@rm -rf dist
	@env -u $(INTERPRETED) $(BIN)/uv build --python $(BIN)/python --out-dir dist .
	@MILLGATE_WHEEL=$$(ls dist/*.whl) $(BIN)/pytest -s tests/wheel

lowest: packages ## a smoke part of the tests on the lowest versions that pyproject.toml allows (uses the network)
	@rm -rf build/lowest && $(BIN)/uv --quiet venv --python $(BIN)/python build/lowest
	@$(INTERPRETED)=1 $(BIN)/uv --quiet pip install --python build/lowest --resolution lowest-direct -e '.[client,sim]'
	@$(BIN)/uv --quiet pip install --python build/lowest anthropic hatchling hypothesis openai pytest pytest-xdist starlette trustme uvicorn
	@echo "lowest: $$($(BIN)/uv --quiet pip freeze --python build/lowest --exclude-editable | tr '\n' ' ')"
	build/lowest/bin/pytest -n 2 -W default -p no:cacheprovider $(SMOKE)

LOCK = $(BIN)/uv pip compile --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--no-header --no-annotate --quiet
# The container's locks name the versions that requirements.lock names, of what is needed to run and to build alone.
CONTAINER_LOCK = $(LOCK) --constraint requirements.lock
# What a gate in a container may want of the extras.
CONTAINER_EXTRAS = --extra redis --extra extproc
BUILD_REQUIRES = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")

lock: packages ## bring requirements.lock and the container's locks up to pyproject.toml (uses the network)
	$(LOCK) pyproject.toml --all-extras --group dev --output-file requirements.lock
	$(CONTAINER_LOCK) pyproject.toml --output-file deploy/container/runtime.lock
	$(CONTAINER_LOCK) pyproject.toml $(CONTAINER_EXTRAS) --output-file deploy/container/full.lock
	$(BIN)/python -c '$(BUILD_REQUIRES)' | $(CONTAINER_LOCK) - --output-file deploy/container/build.lock

clean: ## remove the environment, what was compiled, and every cache
	find src -name '*.so' -delete
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
