# Needs GNU make and Python 3.11 or newer; everything else goes into .venv (see tools/bootstrap.sh).
#
#   make demo DATA=trips.ndjson ROW_KEY=uuid5:trip_id      the same with documents of your own
#   make test ARGS='tests/codec -x'                        a part of the tests
#   make test FAST=1                                       with the [fast] extra only, in one process (FAST=0: without)
#   make test PYTHON=python3.13                            with another Python
.POSIX:
.SUFFIXES:
.NOTPARALLEL:
.PHONY: help install demo test lint bench clean

export PYTHON DATA ROW_KEY
PY = .venv/bin/python

help:
	@echo 'make demo    the whole story on 2,219 real documents, on two private MySQL servers'
	@echo '             (DATA=file.ndjson and ROW_KEY=field: on your own)'
	@echo 'make test    lint, then all tests with and without the [fast] extra, on private MySQL servers'
	@echo '             (ARGS=... goes to pytest; FAST=1 or FAST=0 only with or without)'
	@echo 'make lint    ruff, mypy --strict, import contracts'
	@echo 'make bench   what the figures in README.md come from (ARGS=... goes to each script)'
	@echo 'make install only the virtual environment, .venv (PYTHON=... chooses the Python)'
	@echo 'make clean   remove .venv, builds and caches; not the data of private servers'

install:
	@sh tools/bootstrap.sh

demo: install
	@$(PY) -m schemaless.cli.entry demo $(if $(DATA),--data "$$DATA") $(if $(ROW_KEY),--row-key "$$ROW_KEY") $(ARGS)

# Every test runs twice, side by side: in one process with the [fast] extra, in the other without. Servers that the
# suite did not start are shared, and some tests use fixed names there: one after the other.
test: lint
ifneq ($(FAST),)
	SCHEMALESS_FAST=$(FAST) $(PY) -m pytest $(ARGS)
else ifneq ($(filter docker,$(SERVER))$(findstring ://,$(SERVER)),)
	SCHEMALESS_FAST=1 $(PY) -m pytest $(ARGS)
	SCHEMALESS_FAST=0 $(PY) -m pytest $(ARGS)
else
	$(PY) -m pytest --dist each --tx id=fast//popen//env:SCHEMALESS_FAST=1 --tx id=plain//popen//env:SCHEMALESS_FAST=0 \
	    $(ARGS)
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

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find schemaless migrations tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
