#!/bin/sh
# Makes .venv and installs the project into it, with the extras that all targets of the Makefile need, and, where cargo is
# present, with the native extension in rust/; as "bootstrap.sh demo", only with the extras of 'make demo'. Run by make,
# from any folder.
#
# Does nothing, in a few milliseconds, when .venv was made here from the same setup.cfg, pyproject.toml, constraints.txt
# and rust/; needs the network only for what is not installed yet. Every failure is one line with the next step.
#
# PYTHON   the interpreter to use; without it python3, else the newest python3.N that will do
set -eu
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/installed-from
log=$venv/install.log
native_stamp=$venv/native-from
native_log=$venv/native.log
for=${1:-all}
case $for in
demo)
    extras='.[cli,fast,report]'
    # Of 40 packages, the demo imports a fraction; what it does import is compiled then.
    options=--no-compile
    ;;
*)
    options=
    extras='.[async,fast,cli,metrics,status,telemetry,dask,report,bench,export,typed,test]'
    ;;
esac

fail() {
    echo "make: $*" >&2
    exit 1
}

# Settings of the caller's that would send the packages, or Python, elsewhere.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# Whether .venv was made with the Python that was asked for, if one was.
same_python() {
    [ -n "${PYTHON:-}" ] || return 0
    which='import os, sys; print(os.path.realpath(sys.base_prefix), sys.version_info[:2])'
    [ "$("$PYTHON" -c "$which" 2>&1)" = "$($venv/bin/python -c "$which")" ]
}

# Builds the native extension where there is a Rust compiler; without one the store goes on, more slowly.
# Its stamp holds the sources' checksum, behind the reason where it could not be built from them.
native() {
    [ "$for" != demo ] && [ -f rust/Cargo.toml ] || return 0
    sources=$(cat rust/Cargo.toml rust/Cargo.lock rust/pyproject.toml rust/src/*.rs constraints.txt | cksum)
    known=
    [ ! -f $native_stamp ] || known=$(cat $native_stamp)
    [ "$known" != "$sources" ] || return 0
    if ! command -v cargo >/dev/null 2>&1; then
        [ "$known" != "no cargo $sources" ] || return 0
        echo "make: no cargo here: packed works, but slowly, and reads take longer; install Rust to build the native extension" >&2
        $venv/bin/python -m pip uninstall --quiet --yes schemaless-packed >$native_log 2>&1 || :
        printf '%s\n' "no cargo $sources" >$native_stamp
        return 0
    fi
    cargo=$(cargo --version 2>&1) || :
    [ "$known" != "failed with $cargo $sources" ] || return 0
    echo "make: building the native extension (once; a minute or two)" >&2
    began=$(date +%s)
    if $venv/bin/python -m pip install --quiet --constraint constraints.txt maturin >$native_log 2>&1 &&
        PATH="$PWD/$venv/bin:$PATH" $venv/bin/python -m pip install --quiet --no-build-isolation --no-deps \
            --force-reinstall ./rust >>$native_log 2>&1; then
        echo "make: built it in $(($(date +%s) - began)) s" >&2
        printf '%s\n' "$sources" >$native_stamp
    else
        echo "make: could not build it; all works without it, but more slowly; details in $native_log" >&2
        $venv/bin/python -m pip uninstall --quiet --yes schemaless-packed >>$native_log 2>&1 || :
        printf '%s\n' "failed with $cargo $sources" >$native_stamp
    fi
}

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

# The stamp holds the sources' checksum, and the folder: a virtual environment does not survive being moved.
wanted="$(cat setup.cfg pyproject.toml constraints.txt tools/bootstrap.sh | cksum) $(pwd -P)"
made_for=$(cat $stamp 2>/dev/null) || :
if { [ "$made_for" = "all $wanted" ] || [ "$made_for" = "$for $wanted" ]; } && $venv/bin/python -c '' 2>/dev/null; then
    if same_python; then
        native
        exit 0
    fi
fi

# Making or installing into it would change the environment of another folder.
if [ -L $venv ]; then
    fail "$PWD/$venv is a symbolic link, and make would change the environment that it leads to; remove the link" \
        "(rm $venv) and run it again, to make an environment here"
fi

if [ -n "${PYTHON:-}" ]; then
    python=$PYTHON
    command -v "$python" >/dev/null 2>&1 || fail "PYTHON=$python: no such program"
else
    python=
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        command -v $candidate >/dev/null 2>&1 || continue
        python=${python:-$candidate}
        if $candidate -c "$new_enough" 2>/dev/null; then
            python=$candidate
            break
        fi
    done
    [ -n "$python" ] || fail "python3 was not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"
fi

version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) ||
    fail "$python does not run; name another: make PYTHON=/path/to/python3"
"$python" -c "$new_enough" ||
    fail "$python is Python $version, and 3.11 or newer is needed; install one, or name it: make PYTHON=/path/to/python3"
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    minor=${version%.*}
    fail "$python ($version) cannot make virtual environments, as venv or ensurepip is missing; on Debian and Ubuntu:" \
        "apt-get install python$minor-venv (or python3-venv)"
fi

# Whether .venv can be kept: it works, was made in this folder, and with this Python.
usable() {
    $venv/bin/python -m pip --version >/dev/null 2>&1 || return 1
    [ ! -f $stamp ] || [ "$(sed 's/^[a-z]* [0-9]* [0-9]* //' $stamp)" = "$(pwd -P)" ] || return 1
    same_python
}

if ! usable; then
    echo "make: making $venv with Python $version" >&2
    made=$("$python" -m venv --clear $venv 2>&1) ||
        fail "no virtual environment could be made in $PWD/$venv: $(printf '%s\n' "$made" | tail -n 1)"
fi

# Installs the project, and shows on a terminal what pip is doing, in one line that the next one replaces.
install() {
    { $venv/bin/python -m pip install $options "$@" --constraint constraints.txt --editable "$extras" 2>&1 || echo "pip failed"; } | {
        failed=0
        while IFS= read -r line; do
            case $line in
            "pip failed") failed=1 ;;
            *) printf '%s\n' "$line" >>$log ;;
            esac
            case $line in
            Collecting* | *" Downloading "* | Installing*)
                if [ -t 2 ]; then
                    printf '\r\033[Kmake: %.70s' "${line#"${line%%[! ]*}"}" >&2
                elif [ "${line#Installing}" != "$line" ]; then
                    echo "make: downloaded, installing" >&2
                fi
                ;;
            esac
        done
        [ ! -t 2 ] || printf '\r\033[K' >&2
        exit $failed
    }
}

# Without the index first: it is enough when everything is there, and it is quick.
: >$log
if ! { $venv/bin/python -c 'import setuptools, wheel' 2>/dev/null && install --no-index --no-build-isolation; }; then
    case $for in demo) lasts='half a minute' ;; *) lasts='one to three minutes' ;; esac
    echo "make: downloading and installing packages into $venv (once; $lasts)" >&2
    : >$log
    if ! install; then
        reason=$(grep '^ERROR' $log | tail -n 1)
        [ -n "$reason" ] || reason=$(tail -n 1 $log)
        if grep -qiE 'No space left on device|Disk quota exceeded' $log; then
            fail "no space left for $PWD/$venv or for temporary files (TMPDIR); free some and run it again"
        elif grep -qiE 'NewConnectionError|NameResolution|Failed to establish|ConnectTimeout|ReadTimeout|ProxyError|SSLError|connection broken|Network is unreachable|No matching distribution' $log; then
            fail "pip could not get what is needed from a package index; connect (see 'pip config list') and run it again;" \
                "details in $log"
        fi
        fail "pip could not install the project: $reason; details in $log"
    fi
fi
# Type checkers do not follow the hook of an editable install: they find the package by this line.
pwd -P >"$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/schemaless-types.pth"
printf '%s\n' "$for $wanted" >$stamp
native
