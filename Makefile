# Needs GNU make and Python 3.11 or newer; everything else goes into .venv (see tools/bootstrap.sh).
#
#   make demo DATA=trips.ndjson ROW_KEY=uuid5:trip_id      the same with documents of your own
#   make test ARGS='tests/codec -x'                        a part of the tests
#   make test PYTHON=python3.13                            with another Python
.POSIX:
.SUFFIXES:
.NOTPARALLEL:
.PHONY: help install demo test test-all test-native test-floors lint bench bench-migrate docs reference dist check-dist clean

export PYTHON DATA ROW_KEY
PY = .venv/bin/python

help:
	@echo 'make demo    the whole story on 7,134 real documents, on two private MySQL servers'
	@echo '             (DATA=file.ndjson and ROW_KEY=field: on your own)'
	@echo 'make test    lint and the tests, in five minutes on two cores (ARGS=... goes to pytest)'
	@echo 'make test-all  every test with [fast] on MySQL and without it on MariaDB, long matrices,'
	@echo '             the native extension on each CPython, the oldest dependencies'
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

demo:
	@sh tools/bootstrap.sh demo
	@$(PY) -m schemaless.cli.entry demo $(if $(DATA),--data "$$DATA") $(if $(ROW_KEY),--row-key "$$ROW_KEY") $(ARGS)

test: export ARGS := $(ARGS)
test: install
	@sh tools/test.sh

test-all: export ARGS := $(ARGS)
test-all: install
	@sh tools/test.sh all
	@[ -z "$$(command -v cargo)" ] || ARGS= OTHERS=1 sh tools/test-native.sh
	@ARGS= sh tools/test-floors.sh

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
