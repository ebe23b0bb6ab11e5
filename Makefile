# The two commands of the README are `make up` and `make test`; each sets up what it needs.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# The tests start hundreds of Pythons; with this variable each would compile the launcher again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup up test test-extended test-kubernetes test-fast test-darwin test-lowest test-prereleases test-matrix test-next release-check parity check generated docs pictures format bench bench-quick bench-peers clean

# The Pythons for tfcluster (3.11 to 3.13), for TensorFlow 2.15 (3.9 to 3.11), for TensorFlow 2.16
# (3.9 to 3.12) and for the next TensorFlow (3.14). If empty, they are searched on PATH, in pyenv and
# through uv.
PYTHON ?=
PYTHON_TF215 ?=
PYTHON_TF216 ?=
PYTHON_NEXT ?=

BIN := .venv/bin
# More processes than cores, as half of the tests wait. tests/scheduling.py assigns the tests.
PYTEST := $(BIN)/pytest -n 6 --dist loadgroup
NEWEST := .venv/.installed
TF215 := .venv-tf215/.installed
TF216 := .venv-tf216/.installed
KERAS := .venv-keras/.installed
NIGHTLY := .venv-keras/nightly/.installed
NEXT := .venv-next/.installed
JAX := .venv-jax/.installed
PEERS := .venv-peers/.installed
RELEASE := .venv-release/.installed
LOWEST := .venv-lowest/.installed
PRERELEASES := .venv-prereleases/.installed

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

setup: $(NEWEST) $(TF215) ## create .venv (newest TensorFlow) and .venv-tf215 (TensorFlow 2.15, for Estimator)

$(NEWEST): constraints/newest.txt pyproject.toml tools/make_venv.py
	@python3 tools/make_venv.py .venv --python "$(PYTHON)" --oldest 3.11 --newest 3.13 \
		--what "the newest TensorFlow and the development tools" \
		--constraints constraints/newest.txt --editable .
	@touch $@

# Without a Python for TensorFlow 2.15 everything but Estimator works: a message, not an error.
$(TF215): constraints/tf215.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-tf215 \
		--python "$(PYTHON_TF215)" --oldest 3.9 --newest 3.11 --variable PYTHON_TF215 \
		--what "TensorFlow 2.15" --constraints constraints/tf215.txt; \
	code=$$?; case $$code in 0) touch $@ ;; 3) test -z "$$CI" ;; *) exit $$code ;; esac

# The oldest TensorFlow whose `tf.keras` is Keras 3. Based on it and on the newest TensorFlow, there
# is an environment for each Keras release that the Keras 3 patch is tested with. Only tests use them.
$(TF216): constraints/tf216.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-tf216 \
		--python "$(PYTHON_TF216)" --oldest 3.9 --newest 3.12 --variable PYTHON_TF216 \
		--what "TensorFlow 2.16" --constraints constraints/tf216.txt
	@touch $@

$(KERAS): constraints/keras-releases.txt tools/make_keras.py $(NEWEST) $(TF216)
	@python3 tools/make_keras.py .venv-keras --releases constraints/keras-releases.txt
	@touch $@

# A nightly of Keras on the newest TensorFlow: Keras alone, so it is installed within seconds.
$(NIGHTLY): constraints/keras-nightly.txt tools/make_keras.py $(NEWEST)
	@python3 tools/make_keras.py .venv-keras --releases constraints/keras-nightly.txt
	@touch $@

# A candidate of TensorFlow, on a Python that no release supports yet: a message where there is none.
$(NEXT): constraints/next.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-next \
		--python "$(PYTHON_NEXT)" --oldest 3.14 --newest 3.14 --variable PYTHON_NEXT \
		--what "the next TensorFlow" --constraints constraints/next.txt; \
	code=$$?; case $$code in 0) touch $@ ;; 3) ;; *) exit $$code ;; esac

# What builds, checks and installs a release: uv, twine, pip-audit, pip-licenses.
$(RELEASE): constraints/release.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-release \
		--python "$(PYTHON)" --oldest 3.11 --newest 3.13 \
		--what "the tools of a release" --constraints constraints/release.txt --editable .
	@touch $@

$(LOWEST) $(PRERELEASES): .venv-%/.installed: pyproject.toml constraints/newest.txt tools/make_lane.py $(RELEASE)
	@.venv-release/bin/python tools/make_lane.py .venv-$* $*
	@touch $@

# Keras on JAX, without TensorFlow: installed within half a minute. Only tests use it.
$(JAX): constraints/jax.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-jax \
		--python "$(PYTHON)" --oldest 3.11 --newest 3.13 \
		--what "Keras on JAX" --constraints constraints/jax.txt
	@touch $@

up: $(NEWEST) ## train the first example: two workers on this machine
	@$(BIN)/tfcluster up cluster_specs/localhost-2w.json

# `make test` is what tfcluster promises for one machine; tests/scheduling.py lists the rest. Two
# files of TensorFlow gangs run at a time, as starting TensorFlow leaves a core idle now and then.
# Test hosts, containers and Slurm nodes share two cores and must not look like hung ones: three at a time.
# TensorFlow detects faults by heartbeats, which a busy machine delays: those tests run alone.
# In the order of their folders the files with the shortest runs come last, so that both cores end together.
GANGS := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
HOSTS_AND_CONTAINERS := tests/integration/hosts tests/integration/docker tests/integration/slurm
KUBERNETES := tests/integration/kubernetes
FAULTS := tests/integration/faults
SLOWEST := --durations=20
test: setup ## test what tfcluster promises for one machine, with real TensorFlow (about 10 minutes)
	@$(PYTEST) $(SLOWEST) -m "not tensorflow and not extended" $(addprefix --ignore ,$(HOSTS_AND_CONTAINERS) $(KUBERNETES))
	@$(GANGS) $(SLOWEST) -m "tensorflow and not extended" --ignore $(KUBERNETES)

test-extended: setup $(KERAS) $(JAX) ## run all other tests: hosts, containers, Slurm, faults with TensorFlow, Keras releases, the tuner
	@$(PYTEST) $(SLOWEST) -n 3 -m "not tensorflow" $(HOSTS_AND_CONTAINERS)
	@$(GANGS) $(SLOWEST) -m "tensorflow and extended" $(addprefix --ignore ,$(FAULTS) $(KUBERNETES))
	@$(BIN)/pytest $(SLOWEST) -m tensorflow $(FAULTS)

test-kubernetes: setup ## run the tests on a real Kubernetes cluster of two nodes (at most 12 minutes)
	@$(BIN)/python -m tests.lab.kube_binaries
	@$(PYTEST) $(SLOWEST) -n 3 -m "not tensorflow" $(KUBERNETES)
	@$(BIN)/pytest $(SLOWEST) -m tensorflow $(KUBERNETES)

ALL_SLOW := integration/docker integration/hosts integration/slurm integration/kubernetes integration/jobs workers/keras3 web  # importing them takes a second per process
WITHOUT_SLOW := $(addprefix --ignore tests/,$(ALL_SLOW))
test-fast: $(NEWEST) ## run the fast tests that do not start TensorFlow
	@$(PYTEST) -m "not tensorflow and not slow" $(WITHOUT_SLOW)

# Selenium, MkDocs and TensorBoard would raise the lowest releases.
UNPINNED := -n 6 --dist loadgroup -m "not tensorflow and not slow and not pinned" $(WITHOUT_SLOW) $(addprefix --ignore tests/,contracts/test_site.py launcher/coordinator/test_tensorboard_files.py)
test-lowest: $(LOWEST) ## run them with the lowest dependencies that pyproject.toml allows, on Python 3.11
	@.venv-lowest/bin/pytest $(UNPINNED)

test-prereleases: $(PRERELEASES) ## run them with the newest dependencies, pre-releases included
	@.venv-prereleases/bin/pytest $(UNPINNED)

# On Linux, tests/darwin.py hides what macOS lacks, and mypy finds the other uses of it.
test-darwin: $(NEWEST) ## run the unit tests that need no Linux, here with a stand-in for macOS
	@$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	@TFCLUSTER_TEST_PLATFORM=darwin $(PYTEST) -m "not tensorflow and not slow and not linux" tests/launcher tests/workers

test-matrix: setup $(KERAS) ## run the tests that compare Keras releases and check the numbers of docs/parity.md
	@$(BIN)/pytest -m matrix

test-next: $(NEWEST) $(NIGHTLY) $(NEXT) ## test the Keras 3 patch with the next Keras and TensorFlow (under three minutes)
	@for next in .venv-keras/nightly .venv-next; do \
		test ! -e $$next/.installed || TFCLUSTER_TEST_PYTHON_NEWEST=$(CURDIR)/$$next/bin/python \
			$(GANGS) $(SLOWEST) -m next tests/workers/test_keras3.py tests/matrix tests/parity tests/upstream || exit 1; \
	done

STEPS :=
release-check: $(RELEASE) ## build and check a release, or its STEPS="build audit"; print what a person has to do
	@.venv-release/bin/python -m tools.release $(STEPS)

parity: setup ## measure the table of docs/parity.md again: 1, 2 and 3 workers, each Keras
	@$(BIN)/python -m tests.parity > docs/parity.new && mv docs/parity.new docs/parity.md

check: $(NEWEST) ## run ruff, mypy, import-linter, the check for plain English, and linters of the workflows
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/mypy tests benchmarks tools/generated tools/pictures tools/release tools/site tools/check_english.py tools/github_action.py tools/make_lane.py tools/touched_files.py
	@$(BIN)/lint-imports
	@$(BIN)/python tools/check_english.py
	@$(BIN)/jactionlint --profile correctness --shellcheck= --pyflakes=
	@$(BIN)/zizmor --offline --quiet .

generated: $(NEWEST) ## regenerate the JSON schema and pages of docs/reference from the code
	@$(BIN)/python -m tools.generated

docs: $(NEWEST) ## build the documentation site in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

pictures: setup ## take the pictures of the documentation from real runs (needs tmux and chromium)
	@$(BIN)/python -m tools.pictures

format: $(NEWEST) ## format the code with ruff
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

# One after the other, on an otherwise idle machine: they measure time.
bench: setup bench-peers ## compare tfcluster with other launchers; results in benchmarks/results (more than an hour)
	@$(BIN)/python -m benchmarks

bench-quick: $(NEWEST) ## run a smoke test of the benchmarks that need only this machine
	@$(BIN)/python -m benchmarks --quick

bench-peers: $(PEERS) ## create .venv-peers with torchrun, accelerate and honcho (5 GB: torch needs the CUDA libraries)

$(PEERS): constraints/peers.txt tools/make_venv.py
	@python3 tools/make_venv.py .venv-peers \
		--python "$(PYTHON)" --oldest 3.11 --newest 3.13 \
		--what "the launchers that tfcluster is compared with" --constraints constraints/peers.txt
	@touch $@

clean: ## remove the environments and all caches
	rm -rf .venv .venv-tf215 .venv-tf216 .venv-keras .venv-next .venv-jax .venv-peers .venv-release .venv-lowest .venv-prereleases .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
