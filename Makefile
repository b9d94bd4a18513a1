# One command each; every target sets up what it needs first. `make` alone prints this list.
#   ARGS="..." is handed on:  make serve ARGS="--port 9000"   make test ARGS="tests/unit -x"
.DEFAULT_GOAL := help
.PHONY: help setup serve test soak check format bench clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.mantle-setup
LINTED := src tests benchmarks examples scripts
ARGS ?=

help: ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## create .venv and install everything into it (the first time takes minutes)

$(STAMP): pyproject.toml scripts/setup.py
	@$(PYTHON) scripts/setup.py
	@touch $@

serve: $(STAMP) ## run Mantle on this machine with the demo model
	@$(BIN)/mantle serve $(ARGS)

test: $(STAMP) ## run the whole test suite
	@mkdir -p .build
	$(BIN)/python -m pytest --junitxml=.build/junit.xml $(ARGS)

soak: $(STAMP) ## run 100,000 random worlds through the simulator (hours; the progress is shown)
	$(BIN)/python -m mantle.testing.sim_cluster --seeds 100000 $(ARGS)

check: $(STAMP) ## lint, formatting, types, the import law, the tidy rules
	$(BIN)/ruff check $(wildcard $(LINTED))
	$(BIN)/ruff format --check $(wildcard $(LINTED))
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest tests/tidy

format: $(STAMP) ## let ruff fix and format the code
	$(BIN)/ruff check --fix $(wildcard $(LINTED))
	$(BIN)/ruff format $(wildcard $(LINTED))

bench: $(STAMP) ## list the benchmarks; each one's header says how to read its numbers
	@$(BIN)/python scripts/list_benchmarks.py

clean: ## remove .venv and everything built
	rm -rf $(VENV) .build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
