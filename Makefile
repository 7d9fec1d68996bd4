# Domicile: what a person, or CI, does with this repository. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test check fix bench soak nightly clean setup

VENV ?= .venv
WORKERS ?= 3
PY := $(VENV)/bin/python
STAMP := $(VENV)/.domicile-dev
RUN_STAMP := $(VENV)/.domicile-run
PACKAGES := sdk placement node workflows activities cli
CODE := $(PACKAGES) tests $(wildcard examples bench)
# The repository's folders are the packages (docs/decisions/0001). Tools that want to see `domicile` as one tree get
# one of links.
TREE := build/tree

help:  ## say what each target does
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

run: $(RUN_STAMP)  ## serve the auction on one node and place a bid (ONCE=1: stop after the bid)
	@VENV="$(VENV)" ONCE="$(ONCE)" bash .ci/demo

test: $(STAMP)  ## run the fast suite (ARGS=… goes to pytest)
	@echo "== running the fast suite: pytest in $(WORKERS) processes, everything below tests/, servers on free loopback ports"
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(STAMP) $(TREE)  ## lint, format, types, import rules and house style; changes nothing
	@failed=""; \
	step() { echo "== $$1"; shift; "$$@" || failed="$$failed\n  $$*"; }; \
	step "lint" $(VENV)/bin/ruff check $(CODE); \
	step "format" $(VENV)/bin/ruff format --check $(CODE); \
	step "types: mypy, strict, all packages" env MYPYPATH=$(TREE) $(VENV)/bin/mypy -p domicile; \
	step "import rules, house style, documents" $(PY) -m pytest tests/test_imports.py tests/test_tidy.py tests/test_documents.py; \
	if [[ -n $$failed ]]; then echo -e "== failed:$$failed" >&2; exit 1; fi

fix: $(STAMP)  ## let ruff repair and format what it can
	@$(VENV)/bin/ruff check --fix $(CODE)
	@$(VENV)/bin/ruff format $(CODE)

bench: $(STAMP)  ## measure this machine, with peers where they are installed (bench/README.md)
	@$(PY) -m bench $(ARGS)

soak: $(STAMP)  ## 20 minutes of random faults under load (SECS=1200), on real processes
	@DOMICILE_FAULT_SECS=$(or $(SECS),1200) $(PY) -m pytest -s tests/cluster/test_random_faults.py --timeout=36000

SEEDS ?= 200000
nightly: $(STAMP) soak  ## soak, many seeds (SEEDS=200000, two thirds of them clusters), wide models, more examples; takes hours
	@echo "== simulation with $(SEEDS) seeds in $(WORKERS) processes"
	@cd tests/sim && for node in real cluster storm; do \
		$(abspath $(PY)) -m simworld --node $$node --seeds 0:$$(($(SEEDS) / 3)) --jobs $(WORKERS); done
	@echo "== the models' wide worlds, then the suite with the hypothesis profile 'soak'"
	@DOMICILE_MODELS=full $(PY) -m pytest tests/model --timeout=36000
	@$(PY) -m pytest --hypothesis-profile=soak --timeout=36000 $(ARGS)

setup: $(STAMP)  ## make the virtual environment, if pyproject.toml changed since it was made

$(STAMP): pyproject.toml
	@VENV="$(VENV)" bash .ci/setup '.[dev,local]'
	@touch $@ $(RUN_STAMP)

$(RUN_STAMP): pyproject.toml
	@VENV="$(VENV)" bash .ci/setup .
	@touch $@

.PHONY: $(TREE)
$(TREE):
	@rm -rf $(TREE) && mkdir -p $(TREE)/domicile
	@for entry in sdk/*; do [[ $$entry == */__pycache__ ]] || ln -s "$(CURDIR)/$$entry" $(TREE)/domicile/; done
	@for package in $(filter-out sdk,$(PACKAGES)); do ln -s "$(CURDIR)/$$package" $(TREE)/domicile/; done

clean:  ## remove what was built and cached here, the dev data directory (.domicile) excepted
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
	@echo "removed; your data in .domicile, if any, is where it was"
