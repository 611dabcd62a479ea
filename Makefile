# Two commands: `make train` runs the main job, `make test` runs the tests.
# Each makes .venv on first use and is quick afterwards.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := train,plot,demo

.PHONY: train test test-fast lint types docs-examples clean

train: $(VENV)/.installed
	$(BIN)/ringline train $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/pytest $(ARGS)

test-fast: $(VENV)/.installed-dev
	$(BIN)/pytest -m "not slow" $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/pyrefly check

docs-examples: $(VENV)/.installed-dev
	$(BIN)/pytest --doctest-modules src/ringline --ignore=src/ringline/cli $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
