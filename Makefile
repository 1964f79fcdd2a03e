# make serve | test | test-all | check | format | setup
PYTHON ?= python3.11
EXTRA ?= cpu
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 8000
HOST ?= 127.0.0.1
DATA_DIR ?= ./var

.PHONY: setup serve test test-all check format

setup: $(STAMP)

# torch first and by itself: a build that is on hand is taken before a range pulls in another.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(grep -m1 '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRA),dev]'
	touch $(STAMP)

serve: setup
	$(BIN)/shardwright serve --host $(HOST) --port $(PORT) --data-dir $(DATA_DIR)

test: setup
	$(BIN)/python -m pytest

test-all: setup
	$(BIN)/python -m pytest -m "not gpu"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
