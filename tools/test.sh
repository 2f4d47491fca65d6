#!/bin/sh
# Runs the linters beside the test suite. Run by 'make test' and, with the argument "all", by 'make test-all'.
#
# Each test runs once, with the [fast] extra on MySQL. Those marked "twice" run again, without the extra on MariaDB. With
# "all", every test runs in both ways, tests marked "long" and all examples of Hypothesis included, except that those
# marked "once" run once. Tests marked "twice" but not "long" also run with the extra on MariaDB and without it on MySQL.
#
# A file stays in one process, since its fixtures create datastores of fixed names. Files are handed out in alphabetical
# order rather than by number of tests, because the last ones, in tests/wire, are short.
#
# ARGS       arguments for pytest
# SERVER     the only server to run on (tests/conftest.py)
# PROCESSES  number of processes of pytest-xdist, 3 by default; a test waits about a third of its time. The second run of
#            'make test', and the last two of 'make test-all', have a third as many and are beside the others; their output
#            follows.
set -u
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # hundreds of tests start a Python, which would compile the whole package each time

case ${SERVER:-} in
docker | *://*) processes= ;; # some tests use fixed names there
*) processes=${PROCESSES:-3} ;;
esac
failed=0

# Becomes pytest.
suite() {
    fast=$1 server=$2 marks=$3
    shift 3
    echo "make: the suite with SCHEMALESS_FAST=$fast SERVER=$server${marks:+, $marks}" >&2
    # shellcheck disable=SC2086
    SCHEMALESS_FAST=$fast SERVER=$server exec .venv/bin/python -m pytest \
        ${processes:+-n $processes --dist loadfile --no-loadscope-reorder} -m "$marks" "$@" ${ARGS:-}
}

# Takes the status of a run.
note() {
    case $1 in
    0) ;;
    2) exit 2 ;;
    *) failed=1 ;;
    esac
}

# ARGS may name tests none of which is in a later run.
note_later() {
    [ "$1" = 5 ] && [ -n "${ARGS:-}" ] || note "$1"
}

# Takes the name of a function that runs tests. It is called beside what follows, with fewer processes.
beside() {
    (
        processes=$(((processes + 2) / 3))
        [ $processes -gt 1 ] || processes=
        "$1"
    ) >build/second.log 2>&1 &
    second=$!
}

on_mariadb() {
    suite 0 "${SERVER:-mariadb}" 'twice and not long'
}

mixed() {
    trap 'kill $running; exit 2' TERM
    suite 0 "${SERVER:-mysql}" 'twice and not long' &
    running=$!
    wait $running
    note_later $?
    suite 1 "${SERVER:-mariadb}" 'twice and not long' &
    running=$!
    wait $running
    note_later $?
    return $failed
}

mkdir -p build
${MAKE:-make} --no-print-directory lint >build/lint.log 2>&1 &
lint=$!
second=
trap 'kill $lint $second 2>/dev/null; wait' EXIT
# In a fresh clone, one process compiles the tests for all of them.
[ -d tests/__pycache__ ] || .venv/bin/python -m pytest --collect-only -qq >/dev/null 2>&1
if [ "${1:-}" = all ]; then
    [ -z "$processes" ] || beside mixed
    (suite 1 "${SERVER:-mysql}" '' --hypothesis-profile long)
    note $?
    (suite 0 "${SERVER:-mariadb}" 'not once' --hypothesis-profile long)
    note_later $?
    [ -n "$processes" ] || mixed
elif [ -n "$processes" ]; then
    beside on_mariadb
    (suite 1 "${SERVER:-mysql}" 'not long')
    note $?
else
    (suite 1 "$SERVER" 'not long')
    note $?
    (suite 0 "$SERVER" 'twice and not long')
    note_later $?
fi
if [ -n "$second" ]; then
    wait $second
    status=$?
    cat build/second.log
    note_later $status
fi
wait $lint || failed=1
cat build/lint.log
exit $failed
