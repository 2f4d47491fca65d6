#!/bin/sh
# Builds the native extension for each CPython from 3.11 to 3.14 found here, and runs the tests of the codec and of replies
# with it; then once more with the stable ABI, which newer and free-threaded versions fall back to. Run by
# 'make test-native' and, with OTHERS=1, by .ci/run.
#
# The native extension reads objects at the offsets of its CPython version. Interpreters are looked up on the PATH and among
# pyenv's versions. Each gets a virtual environment in build/native, which the next run reuses.
#
# OTHERS=1   skip the version of .venv, which 'make test' covers
# ARGS       arguments for pytest, instead of the files below
set -eu
cd "$(dirname "$0")/.."

versions='3.11 3.12 3.13 3.14'
folder=build/native
packages='PyMySQL SQLAlchemy alembic hypothesis msgpack msgspec orjson ormsgpack platformdirs pytest pytest-docker
    pytest-xdist zstandard'
tests='tests/codec/test_packed_native.py tests/codec/test_packed.py tests/codec/test_packed_reader.py
    tests/codec/test_agreement_on_reading.py tests/codec/test_engine.py tests/codec/test_out_of_memory.py
    tests/codec/test_vectors.py tests/wire/test_replies.py'

fail() {
    echo "make: $*" >&2
    exit 1
}

# Prints the path of a version's interpreter. A shim of pyenv may be on the PATH and still start nothing.
interpreter() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python"$1"; do
        found=$("$candidate" -c 'import sys, venv, ensurepip; print(sys.executable)' 2>/dev/null) || continue
        "$found" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" 2>/dev/null || continue
        echo "$found"
        return
    done
    return 1
}

# Makes a virtual environment with the packages that the tests import, and installs a build of the native extension into it.
prepare() {
    name=$1 python=$2 features=$3
    venv=$folder/$name
    wanted="$(cat constraints.txt tools/test-native.sh | cksum) $python $(pwd -P)"
    if [ "$(cat "$venv/installed-from" 2>/dev/null)" != "$wanted" ]; then
        "$python" -m venv --clear "$venv"
        # shellcheck disable=SC2086
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $packages
        printf '%s\n' "$wanted" >"$venv/installed-from"
    fi
    sources=$(cat rust/Cargo.toml rust/Cargo.lock rust/pyproject.toml rust/src/*.rs | cksum)
    if [ "$(cat "$venv/native-from" 2>/dev/null)" != "$sources" ]; then
        rm -rf "$venv/wheels"
        .venv/bin/maturin build --quiet --release --features "$features" --manifest-path rust/Cargo.toml \
            --interpreter "$venv/bin/python" --out "$venv/wheels" >&2
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall \
            "$venv"/wheels/*.whl
        printf '%s\n' "$sources" >"$venv/native-from"
    fi
}

ran=
failed=
check() {
    echo "make: the native extension with Python $1 ($2)" >&2
    prepare "$@"
    # shellcheck disable=SC2086
    SCHEMALESS_FAST=1 PYTHONPATH=$PWD "$folder/$1/bin/python" -m pytest -q -m 'not mysql and not long' -n 2 ${ARGS:-$tests} ||
        failed="$failed $1"
    ran="$ran $1"
}

command -v cargo >/dev/null 2>&1 || fail "no cargo here: the native extension cannot be built; install Rust"
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
newest=
mkdir -p $folder
for version in $versions; do
    if ! python=$(interpreter "$version"); then
        echo "make: Python $version is not here: the native extension is not tested with it" >&2
        continue
    fi
    newest=$python
    [ -n "${OTHERS:-}" ] && [ "$version" = "$own" ] || check "$version" "$python" ''
done
[ -n "$newest" ] || fail "none of Python $versions is here"
check stable "$newest" stable
[ -z "$failed" ] || fail "the native extension fails with Python$failed"
echo "make: the native extension passes with Python$ran" >&2
