#!/bin/sh
# Runs the linters beside the test suite. Run by 'make test' and, with the argument "all", by 'make test-all'.
#
# Each test runs once, with the [fast] extra on MySQL. Those marked "twice" run again, without the extra on MariaDB. With
# "all", every test runs in both ways, except that those marked "once" run once, and those marked "twice" also run with
# the extra on MariaDB and without it on MySQL; tests marked "long" and all examples of Hypothesis are included.
#
# A file stays in one process, since its fixtures create datastores of fixed names. Files are handed out in alphabetical
# order rather than by number of tests, because the last ones, in tests/wire, are short.
#
# ARGS       arguments for pytest
# SERVER     the only server to run on (tests/conftest.py)
# PROCESSES  number of processes of pytest-xdist, 3 by default; a test waits about a third of its time. Both runs of 'make
#            test' are side by side, the second with a third as many processes; its output follows that of the first.
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

mkdir -p build
${MAKE:-make} --no-print-directory lint >build/lint.log 2>&1 &
lint=$!
second=
trap 'kill $lint $second 2>/dev/null; wait' EXIT
# In a fresh clone, one process compiles the tests for all of them.
[ -d tests/__pycache__ ] || .venv/bin/python -m pytest --collect-only -qq >/dev/null 2>&1
if [ "${1:-}" = all ]; then
    (suite 1 "${SERVER:-mysql}" '' --hypothesis-profile long)
    note $?
    (suite 0 "${SERVER:-mariadb}" 'not once' --hypothesis-profile long)
    note_later $?
    (suite 0 "${SERVER:-mysql}" twice)
    note_later $?
    (suite 1 "${SERVER:-mariadb}" twice)
    note_later $?
elif [ -n "$processes" ]; then
    (
        processes=$(((processes + 2) / 3))
        [ $processes -gt 1 ] || processes=
        suite 0 "${SERVER:-mariadb}" 'twice and not long'
    ) >build/second.log 2>&1 &
    second=$!
    (suite 1 "${SERVER:-mysql}" 'not long')
    note $?
    wait $second
    note_later $?
    cat build/second.log
else
    (suite 1 "$SERVER" 'not long')
    note $?
    (suite 0 "$SERVER" 'twice and not long')
    note_later $?
fi
wait $lint || failed=1
cat build/lint.log
exit $failed
