# make demo | venv | test | test-all | test-every | tiers | lint | package | bench | docs | figures
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
DOCS   := $(VENV)/.docs-installed
# What the demo needs, without the developers' tools; an environment that has these has it too.
TRAINS := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-train)
# One more than two cores, since some tests sleep and processes wait for each other's ends.
# Inductor's own pool, a process with torch next to each that compiles, serves Triton on a GPU alone.
TESTS  := OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 \
          $(PY) -m pytest --forks 3
# Its collector of garbage runs less often: a tenth of its time.
PYRIGHT := NODE_OPTIONS=--max-semi-space-size=64 $(VENV)/bin/pyright

# Where a container asks for none, every process would compile all that it imports again: seconds
# for this library alone, four times as many where torch was just installed.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv demo test test-all test-every lint public-types fuzz tiers bench package docs figures clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	python3 tools/install.py $(VENV) --constraint constraints.txt --editable ".[dev]"
	@touch $@

$(VENV)/.installed-train: pyproject.toml constraints.txt
	@python3 tools/install.py $(VENV) --constraint constraints.txt --editable ".[train]"
	@touch $@

# Threads that wait must not spin: next to other work that makes a step ten times slower.
demo: $(TRAINS)
	@OMP_WAIT_POLICY=PASSIVE $(PY) -m staticgraph.cli train --data examples/data/hiv.npz \
	    --model gps --hidden 32 --layers 3 --batch-size 128 --epochs 2 --seed 0 \
	    --out runs/demo --overwrite
	@echo
	@echo "The picture:    runs/demo/report.png"
	@echo "What next:      $(VENV)/bin/staticgraph train --data examples/data/PROTEINS.npz --model gin --epochs 20"
	@echo "Your own model: $(VENV)/bin/staticgraph check --model mymodule:build --data esol"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PYRIGHT)
	$(PY) tools/public_types.py

# The quick tests, under 0.3 s each, while the types are checked: what takes a minute there
# keeps one core, and its few lines come between those of the tests.
test: $(STAMP)
	@$(VENV)/bin/ruff check --quiet .
	@$(MAKE) --no-print-directory --jobs 2 lint quick

.PHONY: quick
quick: $(STAMP)
	$(TESTS) -m "not slow"

# All tests, and a new list of which are slow: the quick ones alone, then the others, each time with
# empty caches, as in a fresh clone, where what compiles first pays for those that follow.
tiers: $(STAMP)
	@for which in "not slow" "slow"; do \
	    caches=$$(mktemp -d); \
	    NUMBA_CACHE_DIR=$$caches/numba TRITON_CACHE_DIR=$$caches/triton \
	        TORCHINDUCTOR_CACHE_DIR=$$caches/inductor $(TESTS) -m "$$which" --write-tiers; \
	    rm -rf $$caches; \
	done

# All of them, and the site: the checks one after the other next to the tests, which leave no core
# idle.
test-all: $(DOCS)
	@$(VENV)/bin/ruff check --quiet .
	@$(MAKE) --no-print-directory --jobs 2 every-test lint site

# With all cases of the families of which test-all runs every third or so, and all drawn examples, of
# which it runs half (tests/support/sampled.py, drawn.py): before a release, and with another version
# of torch or PyG.
test-every: export EVERY_CASE = 1
test-every: test-all

.PHONY: every-test
every-test: $(STAMP)
	$(TESTS)

# Fails where a public name has no type, and says which; pyright finds the package by Python's path.
public-types: $(STAMP)
	$(PY) tools/public_types.py

# Cases that no test has; FUZZ_SEED=3 draws the same ones again, FUZZ_SECONDS=600 more of them.
FUZZ_SECONDS ?= 120
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(PY) -m tests.fuzz --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

# Wheel and source distribution, into dist/.
package: $(STAMP)
	$(PY) -m build

bench: $(STAMP)
	$(PY) -m pytest bench -p no:cacheprovider --benchmark-enable --benchmark-columns=median,iqr,rounds

# The site in build/site, strictly: a dead link or a name that is gone ends it. Whether the drawings
# are what their script draws is among the tests, too.
docs: $(DOCS)
	$(PY) -m docs.tools.draw --check
	@$(MAKE) --no-print-directory site

.PHONY: site
site: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# With the developers' tools, in one call of pip: a second one would build and resolve all again.
$(DOCS): pyproject.toml constraints.txt
	python3 tools/install.py $(VENV) --constraint constraints.txt --editable ".[dev,docs]"
	@touch $(STAMP) $@

# After a benchmark wrote bench/results: its tables in the documents.
figures: $(STAMP)
	$(PY) -m bench.fill_figures bench/results README.md docs/*.md docs/notes/*.md

clean:
	rm -rf runs build dist *.egg-info
