#!/bin/sh
# Runs the tests of codecs, cells and connections with exactly the oldest versions of dependencies that setup.cfg allows
# (constraints-floor.txt), in a virtual environment of its own, build/floors. Run by 'make test-floors' and .ci/run.
#
# ARGS       arguments for pytest, instead of the files below
set -eu
cd "$(dirname "$0")/.."

venv=build/floors
tests='tests/codec tests/store/cells tests/wire/test_driver.py tests/wire/test_pool.py'
wanted="$(cat setup.cfg constraints.txt constraints-floor.txt tools/test-floors.sh | cksum) $(pwd -P)"
if [ "$(cat $venv/installed-from 2>/dev/null)" != "$wanted" ]; then
    echo "make: installing the oldest supported dependencies into $venv" >&2
    mkdir -p build
    .venv/bin/python -m venv --clear $venv
    names=$(sed 's/==.*//' constraints-floor.txt | paste -s -d '|' -)
    grep -viE "^($names)==" constraints.txt >build/constraints-rest.txt
    $venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-floor.txt \
        --constraint build/constraints-rest.txt --editable '.[async,cli,cold,fast]' hypothesis pytest pytest-docker pytest-xdist
    printf '%s\n' "$wanted" >$venv/installed-from
fi
# shellcheck disable=SC2086
SCHEMALESS_FAST=1 SERVER=mysql exec $venv/bin/python -m pytest -q -m 'not long' -n 2 ${ARGS:-$tests}
