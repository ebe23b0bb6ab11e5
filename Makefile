# The two commands of the README are `make up` and `make test`; each sets up what it needs.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# The tests start hundreds of Pythons: each would compile the launcher again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup up test test-extended test-fast test-matrix parity check generated format bench bench-quick bench-peers clean

# The Python that runs tfcluster (3.11 to 3.13), the one for TensorFlow 2.15 (3.9 to 3.11) and the
# one for 2.16 (3.9 to 3.12). Empty: found on PATH, in pyenv, through uv.
PYTHON ?=
PYTHON_TF215 ?=
PYTHON_TF216 ?=

BIN := .venv/bin
# More processes than cores: half of the tests wait. Who runs what: tests/scheduling.py.
PYTEST := $(BIN)/pytest -n 6 --dist loadgroup
NEWEST := .venv/.installed
TF215 := .venv-tf215/.installed
TF216 := .venv-tf216/.installed
KERAS := .venv-keras/.installed
PEERS := .venv-peers/.installed

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup: $(NEWEST) $(TF215) ## .venv with the newest TensorFlow, .venv-tf215 with 2.15 for Estimator

$(NEWEST): constraints/newest.txt pyproject.toml tools/make_venv.py
	@python3 tools/make_venv.py .venv --python "$(PYTHON)" --oldest 3.11 --newest 3.13 \
		--what "the newest TensorFlow and the development tools" \
		--constraints constraints/newest.txt --editable .
	@touch $@

# Without a Python that TensorFlow 2.15 knows, everything but Estimator still works: said, no error.
$(TF215): constraints/tf215.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-tf215 \
		--python "$(PYTHON_TF215)" --oldest 3.9 --newest 3.11 --variable PYTHON_TF215 \
		--what "TensorFlow 2.15" --constraints constraints/tf215.txt; \
	code=$$?; case $$code in 0) touch $@ ;; 3) test -z "$$CI" ;; *) exit $$code ;; esac

# The oldest TensorFlow whose `tf.keras` is Keras 3, and above it and above the newest one an
# environment for each Keras release that the shim is tested with. Only tests need them.
$(TF216): constraints/tf216.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-tf216 \
		--python "$(PYTHON_TF216)" --oldest 3.9 --newest 3.12 --variable PYTHON_TF216 \
		--what "TensorFlow 2.16" --constraints constraints/tf216.txt
	@touch $@

$(KERAS): constraints/keras-releases.txt tools/make_keras.py $(NEWEST) $(TF216)
	@python3 tools/make_keras.py .venv-keras --releases constraints/keras-releases.txt
	@touch $@

up: setup ## train the first example: two workers on this machine
	@$(BIN)/tfcluster up cluster_specs/localhost-2w.json

# `make test` is what the README promises for one machine; tests/scheduling.py lists the rest. Two
# files of TensorFlow gangs run at a time, as starting TensorFlow leaves a core idle now and then.
# Test hosts and containers share two cores and must not look like hung ones: three at a time.
# TensorFlow detects faults by heartbeats, which a busy machine delays: those tests run alone.
HOSTS_AND_CONTAINERS := tests/integration/hosts tests/integration/docker
FAULTS := tests/integration/faults
SLOWEST := --durations=20
test: setup ## what the README promises for one machine, with real TensorFlow: about 10 minutes
	@$(PYTEST) $(SLOWEST) -m "not tensorflow and not extended" $(addprefix --ignore ,$(HOSTS_AND_CONTAINERS))
	@$(BIN)/pytest $(SLOWEST) -n 2 --dist loadfile -m "tensorflow and not extended"

test-extended: setup $(KERAS) ## hosts, containers, faults with TensorFlow, Keras releases, the tuner, the rest
	@$(PYTEST) $(SLOWEST) -n 3 -m "not tensorflow" $(HOSTS_AND_CONTAINERS)
	@$(BIN)/pytest $(SLOWEST) -n 2 --dist loadfile -m "tensorflow and extended" --ignore $(FAULTS)
	@$(BIN)/pytest $(SLOWEST) -m tensorflow $(FAULTS)

ALL_SLOW := integration/docker integration/hosts integration/jobs workers/keras3  # to read them takes a second a process
test-fast: $(NEWEST) ## the tests that need neither TensorFlow nor patience
	@$(PYTEST) -m "not tensorflow and not slow" $(addprefix --ignore tests/,$(ALL_SLOW))

test-matrix: setup $(KERAS) ## the tests that compare Keras releases, and the numbers of docs/parity.md
	@$(BIN)/pytest -m matrix

parity: setup ## measure the table of docs/parity.md anew: 1, 2 and 3 workers, each Keras
	@$(BIN)/python -m tests.parity > docs/parity.new && mv docs/parity.new docs/parity.md

check: $(NEWEST) ## ruff, mypy, import-linter, plain English
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/mypy tests benchmarks tools/generated tools/check_english.py
	@$(BIN)/lint-imports
	@$(BIN)/python tools/check_english.py

generated: $(NEWEST) ## update the JSON schema, docs/spec.md and docs/commands.md from the code
	@$(BIN)/python -m tools.generated

format: $(NEWEST) ## let ruff rewrite the layout
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

# In turn, never beside each other or anything else: what is measured is time.
bench: setup bench-peers ## measure everything beside its peers; raw numbers to benchmarks/results (an hour and more)
	@$(BIN)/python -m benchmarks

bench-quick: $(NEWEST) ## a smoke of the benchmarks that need nothing but this machine
	@$(BIN)/python -m benchmarks --quick

bench-peers: $(PEERS) ## .venv-peers with torchrun, accelerate and honcho

$(PEERS): constraints/peers.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-peers \
		--python "$(PYTHON)" --oldest 3.11 --newest 3.13 \
		--what "the launchers that tfcluster is measured beside" --constraints constraints/peers.txt
	@touch $@

clean: ## remove the environments and all caches
	rm -rf .venv .venv-tf215 .venv-tf216 .venv-keras .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
