# make run    on a fresh machine: .venv, install, train
# make test   on a fresh machine: .venv, install, the whole test suite
# make check  style, types and imports, then the whole test suite
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install run test test-faults check bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	@touch $@

run: install
	$(BIN)/python -m dtrain strategy=mirrored

test: install
	$(BIN)/python -m pytest

test-faults: install
	$(BIN)/python -m pytest -m faults

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

bench: install
	$(BIN)/python experiments/benchmark.py
	$(BIN)/python experiments/clusters.py
	$(BIN)/python experiments/resume.py
	$(BIN)/python experiments/outage.py
	$(BIN)/python experiments/sweeps.py

clean:
	rm -rf .venv build dist *.egg-info
