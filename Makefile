# Needs GNU make and Python 3.11 or newer; everything else goes into .venv (see tools/bootstrap.sh).
#
#   make demo DATA=trips.ndjson ROW_KEY=uuid5:trip_id      the same with documents of your own
#   make test ARGS='tests/codec -x'                        a part of the tests
#   make test FAST=1                                       with the [fast] extra only, in one process (FAST=0: without)
#   make test PYTHON=python3.13                            with another Python
.POSIX:
.SUFFIXES:
.NOTPARALLEL:
.PHONY: help install demo test lint bench bench-migrate clean

export PYTHON DATA ROW_KEY
PY = .venv/bin/python

help:
	@echo 'make demo    the whole story on 2,219 real documents, on two private MySQL servers'
	@echo '             (DATA=file.ndjson and ROW_KEY=field: on your own)'
	@echo 'make test    lint, then all tests with the [fast] extra on MySQL, and without it on MariaDB'
	@echo '             (CROSS=1: both on both; FAST=1 or FAST=0: one, on both; ARGS=... goes to pytest)'
	@echo 'make lint    ruff, mypy --strict, import contracts'
	@echo 'make bench   what the figures in README.md come from (ARGS=... goes to each script)'
	@echo 'make bench-migrate  only those of the migration'
	@echo 'make install only the virtual environment, .venv (PYTHON=... chooses the Python)'
	@echo 'make clean   remove .venv, builds and caches; not the data of private servers'

install:
	@sh tools/bootstrap.sh

demo: install
	@$(PY) -m schemaless.cli.entry demo $(if $(DATA),--data "$$DATA") $(if $(ROW_KEY),--row-key "$$ROW_KEY") $(ARGS)

# Every test runs twice, side by side: in one process with the [fast] extra on MySQL, in the other without it on MariaDB.
# What is marked "once", since neither changes it, runs in the first alone. CROSS=1 runs each on both, which takes twice as
# long. Servers that the suite did not start are shared, and some tests
# use fixed names there: one after the other.
FAST_PROCESS = --tx id=fast//popen//env:SCHEMALESS_FAST=1
PLAIN_PROCESS = --tx id=plain//popen//env:SCHEMALESS_FAST=0
test: lint
ifneq ($(FAST),)
	SCHEMALESS_FAST=$(FAST) $(PY) -m pytest $(ARGS)
else ifneq ($(filter docker,$(SERVER))$(findstring ://,$(SERVER)),)
	SCHEMALESS_FAST=1 $(PY) -m pytest $(ARGS)
	SCHEMALESS_FAST=0 $(PY) -m pytest $(ARGS)
else ifneq ($(SERVER)$(CROSS),)
	$(PY) -m pytest --dist each $(FAST_PROCESS) $(PLAIN_PROCESS) $(ARGS)
else
	$(PY) -m pytest --dist each $(FAST_PROCESS)//env:SERVER=mysql \
	    $(PLAIN_PROCESS)//env:SERVER=mariadb//env:SCHEMALESS_ONCE=elsewhere $(ARGS)
endif

lint: install
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy --strict schemaless migrations
	.venv/bin/lint-imports

bench: install
	@for script in benchmarks/[!_]*.py; do \
	    [ -f "$$script" ] || continue; \
	    echo "== $$script"; \
	    $(PY) "$$script" $(ARGS) || exit 1; \
	done

bench-migrate: install
	@for script in migrate migrate_scale migrate_latency; do \
	    echo "== benchmarks/$$script.py"; \
	    $(PY) benchmarks/$$script.py $(ARGS) || exit 1; \
	done

clean:
	rm -rf .venv build dist rust/target *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find schemaless migrations tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
