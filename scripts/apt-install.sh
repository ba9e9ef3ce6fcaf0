#!/bin/sh
# Installs Debian packages if nobody has to be asked anything: as root, or by a sudo that wants no password.
# Otherwise, or when it fails, says why on stderr and exits 1.
set -eu

if ! command -v apt-get >/dev/null; then
    echo "this machine has no apt-get" >&2
    exit 1
elif [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "that needs root: apt-get install $*" >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt_get() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" </dev/null >"$log" 2>&1
}

apt_get install --no-install-recommends "$@" && exit 0
# A fresh machine has no package lists, and old ones name files that are gone. A source that cannot be reached makes
# `update` fail, though the others may have what we want.
if grep -qE 'Unable to locate|no installation candidate|Failed to fetch|404' "$log"; then
    apt_get update || true
    apt_get install --no-install-recommends "$@" && exit 0
fi
tail -n 3 "$log" >&2
exit 1
