# Two commands for a newcomer: `make table3` and `make test`. Each makes .venv first.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
SMOKE := build/smoke

.PHONY: table3 all test test-slow lint types pytest smoke documents schemas

table3: $(BIN)/lazytrain
	snakemake --cores all results/table3.csv

all: $(BIN)/lazytrain
	snakemake --cores all

test: export HF_HUB_OFFLINE = 1
test: lint types pytest smoke
	@echo "make test: all checks passed"

test-slow: $(BIN)/lazytrain
	pytest -m "slow and not gpu"

lint: $(BIN)/lazytrain
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	snakemake --lint

types: $(BIN)/lazytrain
	mypy
	lint-imports

pytest: $(BIN)/lazytrain
	OMP_NUM_THREADS=1 pytest -n 2 --dist loadfile -m "not slow and not gpu"

# Every rule once, in a folder of its own, then the report.
smoke: $(BIN)/lazytrain
	rm -rf $(SMOKE)
	mkdir -p $(SMOKE)
	ln -s $(CURDIR)/config $(CURDIR)/profiles $(SMOKE)/
	snakemake --cores all --directory $(SMOKE) --configfile config/smoke.yaml
	snakemake --directory $(SMOKE) --configfile config/smoke.yaml --report report.zip

# Generated tables in written documents; a test compares them.
documents: $(BIN)/lazytrain
	lazytrain claims --document ARTIFACT.md
	lazytrain report differences results/recorded --document ARTIFACT.md
	lazytrain report glance results/recorded --document README.md
	lazytrain report benchmarked results/recorded --document README.md

schemas: $(BIN)/lazytrain
	python -m lazytrain.schemas

$(BIN)/lazytrain:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[all,dev]'
