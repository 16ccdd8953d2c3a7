PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test tests test-cluster test-versions soak docs lint style types fix clean

demo: $(VENV)/.ready  ## set up, then read a novel with and without memory: about five minutes on two cores
	$(BIN)/recurrify demo

test: $(VENV)/.ready style  ## set up, then lint, types, import directions and all tests
	$(MAKE) --no-print-directory --jobs 2 types tests

tests: $(VENV)/.ready
	$(BIN)/python -m pytest -n auto --dist worksteal

test-cluster: $(VENV)/.ready  ## a sweep on a real Slurm on this machine (Debian, root): a node dies, a disk is full
	$(BIN)/python -m pytest -rs papers/tests/cluster/slurm_sweep.py

OLDEST := transformers==5.17.0
NEWEST := transformers
OLDEST_TORCH ?= torch==2.13.0
NEWEST_TORCH ?= torch==2.13.0
CONTRACT := tests/modeling/test_contract.py tests/modeling/test_families.py tests/modeling/test_saving.py \
  tests/modeling/test_saved_by_0_1_0.py tests/modeling/test_generation.py tests/modeling/test_trainer.py \
  tests/integrations/test_tool_trainer.py tests/integrations/test_tool_server.py tests/integrations/test_tool_torchao.py

test-versions: .versions/oldest .versions/newest  ## the contract with the oldest and the newest transformers
	.versions/oldest/bin/python -m pytest $(CONTRACT)
	.versions/newest/bin/python -m pytest $(CONTRACT)

.versions/oldest: PACKAGES = "$(OLDEST)"
.versions/oldest: TORCH = $(OLDEST_TORCH)
.versions/newest: PACKAGES = "$(NEWEST)" torchao
.versions/newest: TORCH = $(NEWEST_TORCH)
.versions/%: pyproject.toml
	rm -rf $@
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) || (rm -rf $@ && false)
	$@/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) $(PACKAGES) \
	  -e '.[serve]' pytest hypothesis || (rm -rf $@ && false)

KILLS ?= 100
INPUTS ?= 2000
DAMAGES ?= 200

soak: $(VENV)/.ready  ## kills, full disks, damaged files and bad input: the table of docs/survives.md; resumes
	$(BIN)/python tools/soak.py --kills $(KILLS) --inputs $(INPUTS) --damages $(DAMAGES)

docs: $(VENV)/.ready  ## build the documentation site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: style types

style: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.ready
	$(BIN)/mypy

fix: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.ready: pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' -e 'papers[forecast]'
	touch $@

clean:
	rm -rf $(VENV) .versions .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
