# What a newcomer types: `make setup`, `make demo`, `make test`, `make check`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# Arguments: make test ARGS="tests/unit -k fold", make bench ARGS=--quick
ARGS ?=
# How long to simulate, and where to begin.
SECONDS ?= 60
SEED ?= 1

.PHONY: help setup servers test check format simulate mutants demo bench takeover timers clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## Create .venv with everything for development

servers: ## Install RabbitMQ and PostgreSQL unless they are there
	@bash tests/support/install_servers.sh

test: setup servers ## Run the tests
	$(BIN)/python -m pytest $(ARGS)

check: setup ## Lint, format, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## Rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

simulate: setup ## Run the fleet under simulated faults: make simulate SECONDS=60 SEED=1
	$(BIN)/python -W ignore -m tests.simulation.rig.simulate --seconds $(SECONDS) --seed $(SEED) $(ARGS)

mutants: setup ## Take each guard away, and watch a test fail
	$(BIN)/python -m tests.mutants.run $(ARGS)

demo: $(VENV)/.run ## Run the order example, kills included
	$(BIN)/python -m examples.orders.demo

bench: $(VENV)/.bench servers ## Measure loom-mq beside its peers
	$(BIN)/python -m benchmarks.kernel
	$(BIN)/python -m benchmarks.replay
	$(BIN)/python -m benchmarks.run $(ARGS)

takeover: setup servers ## Measure how soon lost work goes on
	$(BIN)/python -m benchmarks.takeover $(ARGS)

timers: setup servers ## Measure a herd of timers, and other work beside it
	$(BIN)/python -m benchmarks.timers $(ARGS)

clean: ## Remove what make and the tools made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: pip runs again only when pyproject.toml changed.
$(VENV)/.dev: $(VENV)/.python pyproject.toml
	@echo "Installing into $(VENV), about a minute the first time ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# What it takes to run, without the tools for development: a demo should not wait for those.
$(VENV)/.run: $(VENV)/.python pyproject.toml
	@echo "Installing into $(VENV), half a minute the first time ..."
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

# PYTHON=... picks the interpreter; otherwise the first one that is new enough and can make a venv.
$(VENV)/.python:
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	        2>/dev/null; then \
	        echo "Creating $(VENV) with $$("$$python" --version)"; \
	        "$$python" -m venv $(VENV); \
	        touch $@; \
	        exit 0; \
	    fi; \
	done; \
	echo "No Python 3.11 or newer with venv found. Install python3 and python3-venv, or name one:" >&2; \
	echo "    make setup PYTHON=/path/to/python3" >&2; \
	exit 1
