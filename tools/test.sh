#!/bin/sh
# Runs the linters beside the test suite. Run by 'make test' and, with the argument "all", by 'make test-all'.
#
# Each test runs once, with the [fast] extra on MySQL. Those marked "twice" run again, without the extra on MariaDB. With
# "all", every test runs in both ways, except that those marked "once" run once, and those marked "twice" also run with
# the extra on MariaDB and without it on MySQL; tests marked "long" and all examples of Hypothesis are included.
#
# A file stays in one process, since its fixtures create datastores of fixed names.
#
# ARGS       arguments for pytest
# SERVER     the only server to run on (tests/conftest.py)
# PROCESSES  number of processes of pytest-xdist; a test waits about a third of its time
set -u
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # hundreds of tests start a Python, which would compile the whole package each time

case ${SERVER:-} in
docker | *://*) parallel= ;; # some tests use fixed names there
*) parallel="-n ${PROCESSES:-3} --dist loadfile" ;;
esac
failed=0

run() {
    fast=$1 server=$2 marks=$3
    shift 3
    echo "make: the suite with SCHEMALESS_FAST=$fast SERVER=$server${marks:+, $marks}" >&2
    # shellcheck disable=SC2086
    SCHEMALESS_FAST=$fast SERVER=$server .venv/bin/python -m pytest $parallel -m "$marks" "$@" ${ARGS:-}
    status=$?
    # ARGS may name tests none of which is in a later run.
    [ $status = 0 ] || { [ $status = 5 ] && [ -n "${ARGS:-}" ] && [ "$fast$server" != "1${SERVER:-mysql}" ]; } || failed=1
    [ $status != 2 ] || exit 2
}

mkdir -p build
${MAKE:-make} --no-print-directory lint >build/lint.log 2>&1 &
lint=$!
trap 'kill $lint 2>/dev/null' EXIT
if [ "${1:-}" = all ]; then
    run 1 "${SERVER:-mysql}" '' --hypothesis-profile long
    run 0 "${SERVER:-mariadb}" 'not once' --hypothesis-profile long
    run 0 "${SERVER:-mysql}" twice
    run 1 "${SERVER:-mariadb}" twice
else
    run 1 "${SERVER:-mysql}" 'not long'
    run 0 "${SERVER:-mariadb}" 'twice and not long'
fi
wait $lint || failed=1
cat build/lint.log
exit $failed
