# Everything runs in .venv, made from Python 3.11 and a package index alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help setup grpo test check fix bench docs clean

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## Make the virtual environment

# torch first and exactly: an open range would take a CUDA build of several gigabytes.
$(READY): constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) --editable '.[dev]'
	touch $@

grpo: $(READY) ## Train the embedded model on arithmetic by GRPO
	$(BIN)/pyflyte run workflows/grpo.py grpo

test: $(READY) ## Lint, types and all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest

check: $(READY) ## Lint and types alone
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

fix: $(READY) ## Format, and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## Measure what a step costs
	$(BIN)/python -m tests.bench

docs: $(READY) ## Write the generated pages
	$(BIN)/python -m configs reference > docs/configuration.md

clean: ## Delete the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build *.egg-info
