# A fresh clone needs make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CODE := src tests benchmarks examples docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.plot  ## find an eigenspace on four local processes, one of them ten times slower
	$(BIN)/grassia demo

# As many tests at once as there are cores; each keeps BLAS to one thread, or they would share them. Those marked
# torch, engines and hosts need packages of gigabytes, and those marked browser need a browser: they have jobs of
# their own in .ci/run.
test: $(VENV)/.dev  ## run every test and doctest
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal \
	  -m 'not torch and not engines and not hosts and not browser' --doctest-modules --doctest-ignore-import-errors src tests

lint: $(VENV)/.dev  ## check style and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

bench: $(VENV)/.plot  ## run the benchmarks of one machine; engines.py, bare_ray.py, chaos.py and scale.py take long or need Ray
	@for script in $(filter-out %/engines.py %/bare_ray.py %/chaos.py %/scale.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

# Built beside, and put into its place when it is whole: myst-nb leaves what it extracts in the folder above.
docs: $(VENV)/.dev  ## build the site, check its links, run the examples and the Python in the pages
	$(BIN)/python docs/check.py
	rm -rf site build/site
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs \
	  --doctree-dir build/doctrees . build/site
	$(BIN)/python docs/check_site.py build/site
	mv build/site site

clean:  ## remove caches and what runs have written; the environments stay
	rm -rf build dist site grassia-demo grassia-reproduction .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# pip runs only when pyproject.toml is newer than the stamp of the last installation.
$(VENV)/.plot: pyproject.toml $(VENV)/.made
	$(PIP) --editable '.[plot]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.made
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.plot

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "grassia needs Python 3.11 or newer, and '$(PYTHON)' is not." \
	    "Name another one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo '*' > $(VENV)/.gitignore
	@touch $@
