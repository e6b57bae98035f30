# learnvllm: `make serve` and `make test` are all that a newcomer needs. Each sets up what it is missing.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup serve test test-slow lint format site bench clean

# A Python from 3.11 on; choose another with `make serve PYTHON=/path/to/python3.12`.
ifneq ($(PYTHON),)
CHOSEN := --python-was-chosen
else
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo $$p && exit; \
    done; echo python3)
endif

RUN   := .venv/bin/python
# What is no Python at all cannot say so itself; one that is too old is told off by setup.py.
SETUP := case "$$("$(PYTHON)" -c 'print("python")' 2>/dev/null)" in python*) ;; \
    *) echo "learnvllm needs Python 3.11 or newer; $(PYTHON) is not one" >&2; exit 1;; esac; \
    "$(PYTHON)" scripts/setup.py $(CHOSEN)
ARGS  ?=

help:  ## This list
	@awk -F ':.*## ' 'BEGIN { print "learnvllm: how vLLM works, taught by a small vLLM\n" } \
	    /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 } \
	    END { print "\n  Arguments go through ARGS:  make serve ARGS=\"--port 9000\"    make test ARGS=\"tests/scheduling -k preempt\""; \
	          print "  Another Python:             make serve PYTHON=python3.12" }' Makefile || :  # the reader may have gone: make help | head

setup:  ## Only set up: .venv with all but Jupyter Lab, and the embedded model
	@$(SETUP) --extras dev --model

serve:  ## Serve the embedded model on http://127.0.0.1:8000
	@$(SETUP) --extras serve --model
	@$(RUN) -m learnvllm serve $(ARGS)

test:  ## Run the tests (all but the slow ones)
	@$(SETUP) --extras dev --model
	@$(RUN) -m pytest -n 2 --dist worksteal -m "not slow" $(ARGS)

test-slow:  ## Run the slow tests
	@$(SETUP) --extras dev --model
	@$(RUN) -m pytest -m slow $(ARGS) || { code=$$?; [ $$code -eq 5 ] || exit $$code; }  # 5: no slow test there

lint:  ## Check style, types and layers
	@$(SETUP) --extras dev
	@failed=; \
	for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports --no-logo"; do \
	    echo "== $$check"; .venv/bin/$$check || failed="$$failed [$$check]"; \
	done; \
	[ -z "$$failed" ] || { echo "lint failed:$$failed"; exit 1; }

format:  ## Put the code into the house's format
	@$(SETUP) --extras dev
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

site:  ## Build the pages into site/, running the notebooks that have changed
	@$(SETUP) --extras study --model
	@echo "A first build takes minutes, as it runs all notebooks; they run again when they or learnvllm/ change."
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "Open site/index.html; searching needs a server: $(RUN) -m http.server -d site 8080, then http://127.0.0.1:8080"

bench:  ## Measure the engine beside transformers
	@$(SETUP) --extras bench,serve --model
	@model=$$($(RUN) -m learnvllm models path) && for b in throughput latency; do \
	    $(RUN) benchmarks/$$b.py --hf-model "$$model" $(ARGS) || exit; \
	done

clean:  ## Remove .venv, the site and all caches in this folder
	rm -rf .venv .venv.lock site build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
