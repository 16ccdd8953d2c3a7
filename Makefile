PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-cluster soak docs lint fix clean

demo: $(VENV)/.ready  ## set up, then read a novel with and without memory: about five minutes on two cores
	$(BIN)/recurrify demo

test: $(VENV)/.ready lint  ## set up, then lint, types, import directions and all tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-cluster: $(VENV)/.ready  ## a sweep on a real Slurm on this machine (Debian, root): a node dies, a disk is full
	$(BIN)/python -m pytest -rs papers/tests/cluster/slurm_sweep.py

KILLS ?= 100
INPUTS ?= 2000
DAMAGES ?= 200

soak: $(VENV)/.ready  ## kills, full disks, damaged files and bad input: the table of docs/survives.md; resumes
	$(BIN)/python tools/soak.py --kills $(KILLS) --inputs $(INPUTS) --damages $(DAMAGES)

docs: $(VENV)/.ready  ## build the documentation site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.ready: pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e 'papers[forecast]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
