# `make demo` and `make test` need python3 (3.11 or newer), make and git; the rest they install.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# pytest workers: every core compiles.
JOBS ?= logical
FAST := and not slow
SITE := docs/_build/html
# How long random calls are made, and the seed they are drawn from.
SECONDS ?= 60
SEED ?= 0
# Each worker, and each process that a test starts, imports the library and the tests: compiled once.
export PYTHONDONTWRITEBYTECODE :=
# Modules are compiled when they are imported: most of what is installed never is.
INSTALL := pip install -qq --no-compile
# Neighbouring tests stay in one process, where they share what they have compiled.
PYTEST = $(RUN) -m pytest -q -n $(JOBS) --dist worksteal

.PHONY: help demo notebooks test test-all test-cpu test-sim gpu bench docs goldens mutants fuzz lint clean
.DELETE_ON_ERROR:

help:
	@echo "make demo     run the pipelined RMSNorm (in the simulator where there is no GPU)"
	@echo "make notebooks open the lessons in Jupyter (installs it; in the simulator where there is no GPU)"
	@echo "make test     run the tests that need no GPU"
	@echo "make test-all the same with more seeds and shapes"
	@echo "make gpu      run the tests that need a GPU"
	@echo "make bench    measure against torch on this GPU (installs torch)"
	@echo "make docs     build the documentation's site (installs Sphinx)"
	@echo "make goldens  write the kernels' reviewed PTX and docs/reference/instructions.md anew"
	@echo "make mutants  put small bugs into the library one at a time: which of them does no test notice?"
	@echo "make fuzz     make random calls for SECONDS=60 (in the simulator where there is no GPU)"
	@echo "make lint     ruff and mypy"
	@echo "make clean    remove what was installed and cached"

demo: $(VENV)/installed
	@$(RUN) -m numba_tma demo

# The first cell of each notebook chooses the simulator where there is no GPU.
notebooks: $(VENV)/installed-notebooks
	$(RUN) -m jupyterlab --LabApp.default_url=/lab/tree/notebooks/00_first_tile.ipynb

test: test-cpu test-sim

# With more seeds and shapes of what the others cover.
test-all: FAST :=
test-all: test-cpu test-sim

# tests/gpu is collected, so that it keeps importing, and left out.
test-cpu: $(VENV)/installed
	$(PYTEST) -m "not gpu $(FAST)" tests/cpu tests/gpu

# The simulator is chosen when numba.cuda is imported, so its tests have a process of their own.
test-sim: $(VENV)/installed
	NUMBA_ENABLE_CUDASIM=1 $(PYTEST) -m "not gpu $(FAST)" tests/sim

gpu: $(VENV)/installed
	@$(RUN) -m numba_tma doctor
	$(RUN) -m pytest -q -m gpu tests/gpu

# Without the constraints and in an environment of its own: torch pins another CUDA 13 release.
bench: $(VENV)-bench/installed
	$(VENV)-bench/bin/python -m numba_tma bench

# Without the package: the pages that come from it are committed, and so are the notebooks' outputs.
# -E: every page has the contents, so all are written anew.
docs: $(VENV)-docs/installed
	$(VENV)-docs/bin/python -m sphinx -E -q -W --keep-going -c docs . $(SITE)
	@echo "$(SITE)/index.html is the site; the explorer needs a server:" \
		"$(PYTHON) -m http.server --directory $(SITE)"

goldens: $(VENV)/installed
	$(RUN) -m tests.update_goldens

mutants: $(VENV)/installed-dev
	$(RUN) -m tests.mutation

fuzz: $(VENV)/installed
	$(RUN) -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

lint: $(VENV)/installed-dev
	$(RUN) -m ruff check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-docs docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment is made anew when what it is made from has changed.
$(VENV)/installed: pyproject.toml constraints.txt
	$(call create,$(VENV))
	$(VENV)/bin/python -m $(INSTALL) -c constraints.txt -e '.[cu13,test]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(VENV)/bin/python -m $(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/installed-notebooks: $(VENV)/installed
	$(VENV)/bin/python -m $(INSTALL) -c constraints.txt -e '.[notebooks]'
	@touch $@

$(VENV)-bench/installed: pyproject.toml
	$(call create,$(VENV)-bench)
	$(VENV)-bench/bin/python -m $(INSTALL) -e '.[cu13,bench]'
	@touch $@

# The extra alone: Sphinx reads the pages, and does not import the package.
$(VENV)-docs/installed: pyproject.toml constraints.txt
	$(call create,$(VENV)-docs)
	$(VENV)-docs/bin/python -m $(INSTALL) -c constraints.txt $$($(PYTHON) -c \
		"import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	@touch $@

define create
@command -v $(PYTHON) >/dev/null || { \
	echo "$(PYTHON) was not found; numba-tma needs Python 3.11 or newer" >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "numba-tma needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
	"name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
@echo "installing into $(1), which takes a few minutes the first time"
@$(PYTHON) -m venv $(1)
endef
