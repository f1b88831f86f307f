# Needs make, Python >= 3.11 and the network once. Everything else is set up by the target that needs it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= $(shell command -v python3.11 || echo python3)
# A uv on PATH is used when it runs and is new enough; otherwise one of our own is installed in .tools/.
ifndef UV
UV := $(shell uv --version 2>/dev/null | grep -Eq '^uv (0\.(9|[1-9][0-9]+)|[1-9])' && echo uv || echo .tools/bin/uv)
endif
RUN := $(UV) run --frozen
DATA_DIR ?= .stateroom
PYTEST_ARGS ?=
# What one of the many processes of a run compiled, the others read, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

.tools/bin/uv: requirements-uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv .tools || { echo 'python3 has no venv module (Debian: apt install python3-venv)' >&2; exit 1; }
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	@touch $@

.PHONY: setup
setup: $(if $(findstring /,$(UV)),$(UV)) ## Install the locked environment into .venv
	@$(UV) sync --frozen --inexact --quiet

# What finds memories in the demo; there are not wheels of it for every platform, and the demo goes on without it.
.PHONY: model
model: setup
	@$(UV) sync --frozen --inexact --quiet --group demo || echo 'The embedding model of the demo could not be installed.' >&2

.PHONY: demo
demo: model ## Show an agent that crashes, resumes, forks and remembers, on real engines (a minute)
	@$(RUN) python examples/demo.py

.PHONY: serve
serve: setup ## Run the gateway with embedded PostgreSQL and S3; data in DATA_DIR (.stateroom), on PORT (8080)
	@$(RUN) stateroom serve --embedded --data-dir '$(DATA_DIR)' $(if $(PORT),--port '$(PORT)')

# The default suite. One file on one worker, in the order of `testpaths` and the tree: what is long comes first, the quick unit tests fill
# the end.
SUITE := -m 'not soak and not mixed and not victims and not clients and not ecosystem and not deployed' -n 3 --dist loadfile --no-loadscope-reorder

# Twice as many workers as a small machine has cores: some of these tests wait.
.PHONY: unit
unit: setup ## Run the quick tests that need no engines: the loop while one works (half a minute)
	@$(RUN) pytest -q -m 'not soak and not slow' -n 4 --dist worksteal tests/unit sdk/python/tests $(PYTEST_ARGS)

.PHONY: test
test: model ## Run the tests (PYTEST_ARGS=... is passed on)
	@$(RUN) pytest $(SUITE) $(PYTEST_ARGS)

# Floors, in branches: of what decides about keys, formats and conversions, tests that need no engines cover all; of
# everything, the suite covers 95 in a hundred.
CORE := crypto/*,migrations/state/*,storage/format/*
CORE_TESTS := $(addprefix tests/,unit/crypto unit/migrations unit/storage property/test_envelope.py property/test_pieces.py)
.PHONY: coverage-core
coverage-core: setup ## Fail if a branch of crypto, state migrations or formats is not covered (two minutes)
	@$(RUN) coverage erase
	@$(RUN) coverage run -m pytest -q -m 'not soak' -n 2 --dist worksteal $(CORE_TESTS) $(PYTEST_ARGS)
	@$(RUN) coverage combine --quiet
	@$(RUN) coverage report --show-missing --skip-covered --include='$(CORE)' --fail-under=100

.PHONY: coverage
coverage: model ## Run the tests, measure the branches they cover, and fail below 95 in a hundred
	@$(RUN) coverage erase
	@$(RUN) coverage run -m pytest $(SUITE) $(PYTEST_ARGS)
	@$(RUN) coverage combine --quiet
	@$(RUN) coverage report --skip-covered --fail-under=95

.PHONY: check
check: setup lock ## Check style, formatting, types, the import layers, what is generated, the lock file and the hosted CI's file
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) lint-imports
	@$(RUN) python sdk/python/generate.py --check
	@$(RUN) check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(RUN) pre-commit validate-config

.PHONY: generate
generate: setup ## Write the blocking client from the asynchronous one
	@$(RUN) python sdk/python/generate.py

.PHONY: lock
lock: $(if $(findstring /,$(UV)),$(UV)) ## Compare the lock file with what is declared
	@$(UV) lock --check --quiet

.PHONY: hooks
hooks: setup ## Check what is committed, at each commit (pre-commit)
	@$(RUN) pre-commit install

# Each interpreter that is there, with the newest LangGraph that is locked and with the oldest that is supported.
PYTHONS ?= 3.11 3.12 3.13 3.14
OLDEST := langgraph==1.2.22 langgraph-checkpoint==4.3.0
.PHONY: matrix
matrix: setup ## Run unit, conformance and SDK tests on each Python (PYTHONS) and with the oldest LangGraph
	@UV='$(UV)' OLDEST='$(OLDEST)' .ci/matrix $(PYTHONS)

.PHONY: mutants
mutants: setup ## Change the code of crypto and of removals in every small way, and see that a test fails (hours)
	@$(RUN) --group mutants mutmut run $(MUTANTS)
	@$(RUN) --group mutants mutmut results

.PHONY: bench
bench: setup ## Measure against LangGraph's own PostgreSQL saver
	@$(RUN) --group bench python -m benchmarks.run $(BENCH_ARGS)

PEER_PYTHONS := aegra:3.12 langgraph-dev:3.11
.PHONY: bench-peers
bench-peers: setup ## Measure against Aegra and `langgraph dev`, each in an environment of its own below .cache
	@for each in $(PEER_PYTHONS); do \
		$(UV) venv --quiet --allow-existing --python "$${each#*:}" ".cache/peers/$${each%:*}"; \
		$(UV) pip sync --quiet --python ".cache/peers/$${each%:*}" "benchmarks/peer_servers/$${each%:*}.txt"; \
	done
	@$(RUN) --group bench python -m benchmarks.peers $(BENCH_ARGS)

# What is measured, or grows for an hour, keeps its files on disk and not in memory as the suite does.
ON_DISK := TMPDIR="$${TMPDIR:-/tmp}"
.PHONY: soak
soak: setup ## Run the long tests
	@$(ON_DISK) $(RUN) --group bench pytest -m soak $(PYTEST_ARGS)

.PHONY: victims
victims: setup ## Attack with every verb and limit, and measure what others notice (alone on the machine)
	@$(ON_DISK) $(RUN) pytest -m victims -q -s tests/victims $(PYTEST_ARGS)

.PHONY: mixed
mixed: setup ## Run every verb and row kind through this build and the recorded earlier one, side by side
	@UV='$(UV)' $(RUN) pytest -m mixed tests/previous $(PYTEST_ARGS)

.PHONY: openapi
openapi: setup ## Write the OpenAPI snapshot and the pages of problem codes and limits
	@$(RUN) python -m gateway.documents.openapi > tests/golden/openapi.json.new
	@mv tests/golden/openapi.json.new tests/golden/openapi.json
	@$(RUN) python -m gateway.problems > docs/problems.md.new
	@mv docs/problems.md.new docs/problems.md
	@$(RUN) python -m gateway.documents.limits_page > docs/limits.md.new
	@mv docs/limits.md.new docs/limits.md

# Node 20, npm and Java 17 must be there; everything else comes from npm and PyPI, in the versions that are pinned.
.PHONY: clients
clients: setup ## Lint the OpenAPI document; generate, compile and use clients in TypeScript, Go and Python
	@for tool in node npm java; do command -v $$tool > /dev/null || { echo "make clients needs $$tool: Node 20 or newer with npm, and Java 17 or newer" >&2; exit 1; }; done
	@mkdir -p .cache/clients
	@cp tests/clients/package.json tests/clients/package-lock.json .cache/clients/
	@npm ci --prefix .cache/clients --no-audit --no-fund --loglevel=error
	@$(UV) venv --quiet --allow-existing .cache/clients/python
	@$(UV) pip install --quiet --python .cache/clients/python -r tests/clients/requirements.txt
	@$(RUN) pytest -m clients tests/clients $(PYTEST_ARGS)

# Packages of others that the default environment does not have: they bring along what they use of providers.
.PHONY: ecosystem
ecosystem: setup ## Run what others made for LangGraph's stores on ours, and their stores through our suite (half a minute)
	@$(RUN) --group bench --group ecosystem pytest -m ecosystem tests/conformance $(PYTEST_ARGS)

# Each tool that is missing fails the test that needs it, which names Debian's package: podman, haproxy, nginx, prometheus, ...
.PHONY: deployed
deployed: setup ## Run everything below deploy/ for real: images, units, proxies, alerts, runbooks, backups (tools of its own)
	@$(ON_DISK) $(RUN) pytest -m deployed -v tests/deploy $(PYTEST_ARGS)

.PHONY: release
release: setup ## Write the files of a release into dist/: wheels, locked requirements, bill of materials, checksums
	@UV='$(UV)' deploy/container/release.sh dist

# BASE, ENGINE, WHEELHOUSE, PIP_CONF and CA come from the environment: deploy/container/build.sh --help.
.PHONY: image
image: release ## Build the container image of that release
	@DIST=dist deploy/container/build.sh $(IMAGE)

.PHONY: clean
clean: ## Remove environments and caches, never data (DATA_DIR stays)
	@rm -rf .venv .tools .cache mutants .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
