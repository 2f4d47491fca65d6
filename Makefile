# Needs GNU make and Python 3.11 or newer; everything else goes into .venv (see tools/bootstrap.sh).
#
#   make demo DATA=trips.ndjson ROW_KEY=uuid5:trip_id      the same with documents of your own
#   make test ARGS='tests/codec -x'                        a part of the tests
#   make test FAST=1                                       with the [fast] extra only, in one process (FAST=0: without)
#   make test PYTHON=python3.13                            with another Python
.POSIX:
.SUFFIXES:
.NOTPARALLEL:
.PHONY: help install demo test test-native test-floors lint bench bench-migrate docs reference dist check-dist clean

export PYTHON DATA ROW_KEY
PY = .venv/bin/python

help:
	@echo 'make demo    the whole story on 7,134 real documents, on two private MySQL servers'
	@echo '             (DATA=file.ndjson and ROW_KEY=field: on your own)'
	@echo 'make test    lint, then all tests with the [fast] extra on MySQL, and without it on MariaDB'
	@echo '             (CROSS=1: both on both; FAST=1 or FAST=0: one, on both; ARGS=... goes to pytest)'
	@echo 'make test-native  the native extension and its tests on each CPython found here, 3.11 to 3.14'
	@echo 'make test-floors  codecs, cells and connections with the oldest supported dependencies'
	@echo 'make lint    ruff, mypy --strict, import contracts'
	@echo 'make bench   list the benchmarks (SCRIPT=store ARGS=...: run one of them)'
	@echo 'make bench-migrate  run those of the migration'
	@echo 'make dist    all packages in dist/: sdist, wheel, and wheels of the native extension'
	@echo 'make check-dist  install them in empty environments, each extra alone, on each Python; run the demo'
	@echo 'make docs    the documentation as a site, in build/site'
	@echo 'make reference  write docs/reference: the API from docstrings, the commands from their help'
	@echo 'make install only the virtual environment, .venv (PYTHON=... chooses the Python)'
	@echo 'make clean   remove .venv, builds and caches; not the data of private servers'

install:
	@sh tools/bootstrap.sh

demo: install
	@$(PY) -m schemaless.cli.entry demo $(if $(DATA),--data "$$DATA") $(if $(ROW_KEY),--row-key "$$ROW_KEY") $(ARGS)

# Every test runs twice, side by side: with the [fast] extra on MySQL, and without it on MariaDB. What is marked "once",
# since neither changes it, runs on the first side, or where a whole file is, on the one that has nothing else to do; of
# what is marked "shared" each side runs a part: the commands, long matrices of points to be killed at, and bodies that
# an engine named by the test reads. A side is two processes, since each waits a third of its time; a file goes to
# whichever of the two is free (tests/whole_run.py).
# CROSS=1 runs each on both, one process a side, which takes four times as long. Servers that the suite did not start
# are shared, and some tests use fixed names there: one after the other.
#
# Hundreds of tests start a Python, which compiles the whole package anew where it may not keep what it compiled.
side = $(foreach number,1 2,--tx id=$(1)-$(number)//popen//env:SCHEMALESS_FAST=$(2))
SIDES = --dist loadfile --no-loadscope-reorder
#
# Each process would compile every test in a fresh clone. So one does while the linters run, which leave a core idle.
test: export PYTHONDONTWRITEBYTECODE =
test: install
	@$(PY) -m pytest --collect-only -qq $(ARGS) >/dev/null 2>&1 & $(MAKE) --no-print-directory lint; linted=$$?; wait; exit $$linted
ifneq ($(FAST),)
	SCHEMALESS_FAST=$(FAST) $(PY) -m pytest $(ARGS)
else ifneq ($(filter docker,$(SERVER))$(findstring ://,$(SERVER)),)
	SCHEMALESS_FAST=1 $(PY) -m pytest $(ARGS)
	SCHEMALESS_FAST=0 $(PY) -m pytest $(ARGS)
else ifneq ($(SERVER),)
	$(PY) -m pytest $(SIDES) $(call side,fast,1) $(call side,plain,0) $(ARGS)
else ifneq ($(CROSS),)
	$(PY) -m pytest --dist each --tx id=fast//popen//env:SCHEMALESS_FAST=1 --tx id=plain//popen//env:SCHEMALESS_FAST=0 $(ARGS)
else
	$(PY) -m pytest $(SIDES) $(call side,fast,1//env:SERVER=mysql//env:SCHEMALESS_SIDE=0) \
	    $(call side,plain,0//env:SERVER=mariadb//env:SCHEMALESS_SIDE=1) $(ARGS)
endif

test-native: export ARGS := $(ARGS)
test-native: install
	@sh tools/test-native.sh

test-floors: export ARGS := $(ARGS)
test-floors: install
	@sh tools/test-floors.sh

lint: install
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy --strict schemaless migrations
	.venv/bin/lint-imports

bench: install
ifneq ($(SCRIPT),)
	$(PY) benchmarks/$(SCRIPT).py $(ARGS)
else
	@for script in benchmarks/[!_]*.py; do \
	    [ -f "$$script" ] || continue; \
	    name=$${script##*/}; \
	    printf '%-18s  %s\n' "$${name%.py}" "$$(sed -n '1s/^r*"*//p' "$$script")"; \
	done
	@echo; echo 'make bench SCRIPT=store ARGS=--help shows the options of one of them.'
endif

bench-migrate: install
	@for script in migrate migrate_scale migrate_latency; do \
	    echo "== benchmarks/$$script.py"; \
	    $(PY) benchmarks/$$script.py $(ARGS) || exit 1; \
	done

# The extra is installed when the site is first built, so that the other targets need not wait for it.
docs: install
	@$(PY) -c 'import material' 2>/dev/null || \
	    $(PY) -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@$(PY) tools/reference.py
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo 'build/site/index.html'

reference: install
	@$(PY) tools/reference.py

dist: install
	@$(PY) tools/dist.py $(ARGS)

check-dist: install
	@$(PY) tools/check_extras.py $(ARGS)

clean:
	rm -rf .venv build dist rust/target *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find schemaless migrations tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
