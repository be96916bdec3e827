# make bench | test | plots | lock. The environment is made on the first use, and again when the lock file changes.

VENV ?= .venv
BIN := $(VENV)/bin

# The first Python on the path that is in range and can make environments. PYTHON=/path/to/python chooses another.
IN_RANGE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
CANDIDATES := python3 python3.13 python3.12 python3.11
FIND_PYTHON := for p in $(CANDIDATES); do if $$p -c "$(IN_RANGE)" >/dev/null 2>&1; then echo $$p; break; fi; done

PIP := $(BIN)/python -m pip --disable-pip-version-check

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help bench test lint plots lock env

help:
	@echo "make bench   measure this machine:  pytest benchmarks/ --benchmark-only"
	@echo "             ARGS are passed on:    make bench ARGS='--profile smoke -k torch'"
	@echo "make plots   redraw every figure from results/"
	@echo "make test    lint, types and tests"
	@echo "make lint    lint and types only"
	@echo "make env     only make the environment in $(VENV)/"
	@echo "make lock    bring requirements.lock in line with pyproject.toml; UPGRADE=--upgrade takes new releases"

bench: env
	$(BIN)/python -m pytest benchmarks/ --benchmark-only $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

plots: env
	$(BIN)/speedproof plot $(ARGS)

env: $(VENV)/.speedproof-editable

# An empty environment of a Python in range.
$(VENV)/.speedproof-made:
	@python="$${PYTHON:-$(PYTHON)}"; \
	if [ -z "$$python" ]; then python=$$($(FIND_PYTHON)); fi; \
	if [ -z "$$python" ]; then \
		echo "no usable Python found: Speedproof needs Python 3.11, 3.12 or 3.13 with its venv and ensurepip modules" >&2; \
		echo "(tried: $(CANDIDATES); on Debian and Ubuntu the modules are the package python3-venv)." >&2; \
		echo "Install one, or say where it is: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; \
	elif ! "$$python" -c "$(IN_RANGE)"; then \
		echo "PYTHON=$$python cannot be used: Speedproof needs Python 3.11, 3.12 or 3.13 with venv and ensurepip." >&2; \
		exit 1; \
	fi; \
	echo "making $(VENV)/ with $$("$$python" --version)"; \
	"$$python" -m venv "$(VENV)"
	@touch $@

# The packages, exactly as locked; minutes and gigabytes, so only when the lock file is newer than the stamp.
$(VENV)/.speedproof-locked: requirements.lock | $(VENV)/.speedproof-made
	@echo "installing the packages of requirements.lock; the first time takes minutes"
	$(PIP) install --quiet --requirement requirements.lock
	@touch $@

# Speedproof itself, from this checkout.
$(VENV)/.speedproof-editable: $(VENV)/.speedproof-locked pyproject.toml
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# One file for Python 3.11 to 3.13 and every platform. Releases that it already names stay unless UPGRADE says
# otherwise (--upgrade, or --upgrade-package NAME).
lock: $(VENV)/.speedproof-made
	$(PIP) install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra all --extra dev --universal --python-version 3.11 \
		--no-emit-index-url --no-header --annotation-style line $(UPGRADE) --output-file requirements.lock
