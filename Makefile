# make venv | demo | test | test-all | bench | lint | docs | figures
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
TESTS  := OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses 2 --dist worksteal

.PHONY: venv demo test test-all lint bench docs figures clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(STAMP)
	# Threads that wait must not spin: beside other work that makes a step ten times slower.
	OMP_WAIT_POLICY=PASSIVE $(PY) -m staticgraph.cli train --data examples/data/hiv.npz \
	    --model gps --hidden 32 --layers 3 --batch-size 128 --epochs 2 --seed 0 \
	    --out runs/demo --overwrite

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

# The tests that take under ten seconds each.
test: lint
	$(TESTS) -m "not slow"

# All of them, and a minute of the fuzzer; FUZZ_SEED=random draws other cases.
FUZZ_SEED ?= 2
test-all: lint
	OMP_NUM_THREADS=1 $(PY) -m tests.fuzz --seconds 60 $(if $(filter random,$(FUZZ_SEED)),,--seed $(FUZZ_SEED))
	$(TESTS) --durations 20

bench: $(STAMP)
	$(PY) -m pytest bench -p no:cacheprovider --benchmark-enable --benchmark-columns=median,iqr,rounds

# The site in build/site, strictly: a dead link or a name that is gone ends it.
DOCS := $(VENV)/.docs-installed
docs: $(DOCS)
	$(PY) -m docs.tools.draw --check
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

$(DOCS): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@

# After a benchmark wrote bench/results: its tables in the documents.
figures: $(STAMP)
	$(PY) -m bench.fill_figures bench/results README.md docs/*.md docs/notes/*.md

clean:
	rm -rf runs build *.egg-info
