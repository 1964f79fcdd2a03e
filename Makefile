# make serve | test | test-all | test-torchrec | fuzz | contract | check | audit | bench | format | setup
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# cpu or gpu: fbgemm-gpu-cpu and fbgemm-gpu own the same package folder, so a virtual environment holds one of them.
EXTRA = cpu
# Further arguments for pip, for example an index that has CPU builds of torch.
PIP_ARGS =
PORT ?= 8000
HOST = 127.0.0.1
DATA_DIR = ./var
# Processes that share the tests, a file at a time; 0: none but pytest's own.
WORKERS ?= 2

VENV := .venv
AUDIT := .venv-audit
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRA)
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.PHONY: setup serve test test-all test-torchrec fuzz contract check audit bench format

setup: $(STAMP)

# torch first and by itself: a build that is on hand is taken before a range pulls in another.
$(STAMP): pyproject.toml client/pyproject.toml constraints.txt
	@other=$$(ls $(VENV)/.installed-* 2>/dev/null | grep -v '\.installed-$(EXTRA)$$'); \
	if [ -n "$$other" ]; then echo "$(VENV) was set up with another EXTRA ($$other): remove $(VENV) first" >&2; exit 1; fi
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) "$$(grep -m1 '^torch==' constraints.txt)"
	$(PIP) -e '.[$(EXTRA),dev]' -e ./client
	touch $@

serve: setup
	$(BIN)/shardwright serve --host $(HOST) --port $(PORT) --data-dir $(DATA_DIR) --worker

# In the order of the files: the longest, of tests/api, come first, so that no process waits long for the other.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: setup
	TEST_ALL_EXAMPLES=1 $(BIN)/python -m pytest -m "not gpu"

# Bounded by the number of cases, and by 20 minutes.
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.contract.fuzzing --cases 5000

# What changed since the last tag that clients of then would break on.
contract: setup
	$(BIN)/python -m tests.contract.breaking

check: setup contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What is installed against the advisories of PyPI. Not part of check: the answer changes without any change here.
audit:
	test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/pip install --quiet pip-audit==2.10.1; }
	@$(AUDIT)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off; code=$$?; \
	if [ $$code -ne 0 ]; then echo "audit: advisories were found, or PyPI could not be asked: see above; nothing was vouched for" >&2; fi; \
	exit $$code

# TorchRec's requirement fbgemm-gpu would overwrite the CPU build: no dependencies.
TORCHREC = $(PIP) --no-deps -r benchmarks/requirements-torchrec.txt

test-torchrec: setup
	$(TORCHREC)
	$(BIN)/python -m pytest -m "not gpu" tests/client/adapter

bench: setup
	$(TORCHREC)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.planners --quick --write benchmarks/results

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
