# `make demo` and `make test` are all a newcomer needs: both set up and build what is missing.
#   PYTHON=python3.12   interpreter the environment is made from (3.10 or newer)
#   PYTEST_ARGS=...     further pytest arguments; other variables: tools/build_library.py
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
DEMO_MESH ?= assets/star_knot.obj
DEMO_OUT ?= out/demo
CXX_SOURCES = $(wildcard csrc/*.cpp csrc/*.cu csrc/*.h csrc/*.cuh csrc/core/*.h csrc/core/*.cuh)

.PHONY: help setup setup-bench build test acceptance lint format demo wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make demo        set up, build and recover a shape from images; results in $(DEMO_OUT)"
	@echo "make test        set up, build and run the tests (without the slow ones)"
	@echo "make acceptance  the slow and acceptance tests"
	@echo "make build       compile csrc/ into diffrender/_lib"
	@echo "make lint        ruff, clang-format, pyright;  make format: apply the formatters"
	@echo "make wheel       one wheel for every CPython >= 3.10 in dist/"
	@echo "make clean       remove build products and reports; the environment stays (rm -r $(VENV))"

# A stamp file per installed list: a changed list installs again, an unchanged one costs nothing.
setup: $(VENV)/.installed

$(VENV)/.installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"Python 3.10 or newer is needed, {sys.executable} is {sys.version.split()[0]}. Try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
	@touch $@

setup-bench: $(VENV)/.installed-bench

$(VENV)/.installed-bench: requirements-bench.txt $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-bench.txt
	@touch $@

build: setup
	@$(BIN)/python setup.py -q build_library

test: build
	$(BIN)/python -m pytest -m "not slow and not acceptance" $(PYTEST_ARGS)

acceptance: build
	$(BIN)/python -m pytest -m "slow or acceptance" $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(if $(CXX_SOURCES),$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES))
	$(BIN)/pyright

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(if $(CXX_SOURCES),$(BIN)/clang-format -i $(CXX_SOURCES))

demo: build
	$(BIN)/python -m diffrender fit --mesh $(DEMO_MESH) --out $(DEMO_OUT)
	@echo "The results lie in $(DEMO_OUT):" && ls $(DEMO_OUT)

# The build requirements are installed already; without isolation pip does not fetch a second torch.
# Unlike a build for this machine it holds every level.
wheel: setup
	DIFFRENDER_LEVELS="baseline avx2" $(BIN)/python -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf build dist out *.egg-info diffrender/_lib .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
