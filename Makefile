# make demo | venv | test | test-all | test-every | tiers | lint | package | docs | figures
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
DOCS   := $(VENV)/.docs-installed
# What the demo needs, without the developers' tools; a developers' environment contains it.
DEMO   := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-demo)
# Inductor's compile workers, processes with torch next to each one that compiles, only help Triton
# on a GPU.
TESTS  := OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 \
          $(PY) -m pytest -n 2 --dist loadscope --no-loadscope-reorder
# With this option its garbage collector runs less often, which saves a tenth of its time.
PYRIGHT := NODE_OPTIONS=--max-semi-space-size=64 $(VENV)/bin/pyright

# Some containers disable bytecode files; then every process would compile all of its imports again,
# which takes seconds for this library alone, and four times as long if torch was just installed.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv demo test test-all test-every lint public-types fuzz tiers package docs figures clean

venv: $(STAMP)

# uv where it is installed, which takes a third of pip's time; pip is silent for half a minute while it
# unpacks torch. Modules are compiled when they are imported, which are few of torch's thousands.
UV := $(shell command -v uv 2>/dev/null)
ifdef UV
INSTALL = @test -x $(PY) || $(UV) venv --quiet --seed $(VENV); echo "installing into $(VENV) with uv"; \
          $(UV) pip install --quiet --python $(PY) --constraint constraints.txt --editable
else
INSTALL = @test -x $(PY) || python3 -m venv $(VENV); echo "installing into $(VENV): about a minute"; \
          $(PY) -m pip install --no-compile --disable-pip-version-check --progress-bar off \
          --constraint constraints.txt --editable
endif

$(STAMP): pyproject.toml constraints.txt
	$(INSTALL) ".[dev]"
	@touch $@

# Matplotlib for the picture, and no other extra.
$(VENV)/.installed-demo: pyproject.toml constraints.txt
	$(INSTALL) . matplotlib
	@touch $@

# Waiting threads must not spin: next to other work, that makes a step ten times slower.
demo: $(DEMO)
	@OMP_WAIT_POLICY=PASSIVE $(PY) -m staticgraph.cli train --data esol --model gine --hidden 32 \
	    --epochs 20 --seed 0 --out runs/demo --overwrite
	@echo
	@echo "The picture:    runs/demo/report.png"
	@echo "What next:      $(VENV)/bin/staticgraph train --data examples/data/PROTEINS.npz --model gin --epochs 20"
	@echo "Your own model: $(VENV)/bin/staticgraph check --model mymodule:build --data esol"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PYRIGHT)
	$(PY) tools/public_types.py

# The quick tests, under 0.3 s each, run while the types are checked, which takes a minute on one
# core; its few lines of output appear among those of the tests.
test: $(STAMP)
	@$(VENV)/bin/ruff check --quiet .
	@$(MAKE) --no-print-directory --jobs 2 lint quick

.PHONY: quick
quick: $(STAMP)
	$(TESTS) -m "not slow"

# Runs all tests and writes a new list of the slow ones: first the quick ones alone, then the rest,
# each time with empty caches as in a fresh clone, where the first test that compiles something pays
# for those that follow.
tiers: $(STAMP)
	@for which in "not slow" "slow"; do \
	    caches=$$(mktemp -d); \
	    NUMBA_CACHE_DIR=$$caches/numba TRITON_CACHE_DIR=$$caches/triton \
	        TORCHINDUCTOR_CACHE_DIR=$$caches/inductor $(TESTS) -m "$$which" --write-tiers; \
	    rm -rf $$caches; \
	done

# All tests and the site: the checks run one after another next to the tests, so that no core is
# idle.
test-all: $(DOCS)
	@$(VENV)/bin/ruff check --quiet .
	@$(MAKE) --no-print-directory --jobs 2 every-test lint site

# With all cases of the test families of which test-all runs a part, and all drawn examples, of which it
# runs a fifth (tests/support/sampled.py, drawn.py): before a release, and with another
# version of torch or PyG.
test-every: export EVERY_CASE = 1
test-every: test-all

.PHONY: every-test
every-test: $(STAMP)
	$(TESTS)

# Fails if a public name has no type, and prints which; pyright finds the package by PYTHONPATH.
public-types: $(STAMP)
	$(PY) tools/public_types.py

# Cases that no test has: other ones every time, FUZZ_TIMES as many as a subject names.
FUZZ_TIMES ?= 4
fuzz: $(STAMP)
	HYPOTHESIS_PROFILE=random FUZZ_TIMES=$(FUZZ_TIMES) PYTEST_TIMEOUT=1800 $(TESTS) tests/test_fuzz.py

# Wheel and source distribution, into dist/.
package: $(STAMP)
	$(PY) -m build

# Builds the site in build/site in strict mode: a dead link or a missing name fails the build, and so
# does a drawing that differs from its script.
docs: site

.PHONY: site
site: $(DOCS)
	$(PY) -m docs.tools.draw --check
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# Includes the developers' tools, in one call of pip: a second would build and resolve all again.
$(DOCS): pyproject.toml constraints.txt
	$(INSTALL) ".[dev,docs]"
	@touch $(STAMP) $@

# Fills the tables of bench/results into the documents, after a benchmark has run.
figures: $(STAMP)
	$(PY) -m bench.fill_figures bench/results README.md docs/*.md docs/notes/*.md

clean:
	rm -rf runs build dist *.egg-info
