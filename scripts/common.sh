# Sourced by the other scripts: where things lie, how progress is said, how root is reached.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${FLOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flock}

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# The system's file lock; this project's own binary has the same name.
lock_tool=/usr/bin/flock

# Runs a command as root: directly, or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif ! command -v sudo >/dev/null; then
        die "this needs root and there is no sudo; as root: $*"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@" || die "this needs root and sudo asks for a password; as root: $*"
    fi
}

# CPUs to compile with: all of them, but one per 1.5 GiB of memory that is available.
jobs_for_memory() {
    local cpus kib
    cpus=$(nproc)
    kib=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
    local fit=$((kib / 1572864))
    [ "$fit" -ge 1 ] || fit=1
    [ "$fit" -lt "$cpus" ] && echo "$fit" || echo "$cpus"
}

# seconds since a start that was taken with now
now() { date +%s; }
took() { local s=$(($(now) - $1)); printf '%d min %02d s' $((s / 60)) $((s % 60)); }

# gnu or musl, as in the node agent's file name. musl's ldd ends with 1.
libc_word() { case $(ldd --version 2>&1 || true) in *musl*) echo musl ;; *) echo gnu ;; esac }

# Where cargo puts what it builds.
target_folder() {
    (cd "$root" && cargo metadata --no-deps --format-version 1 --offline 2>/dev/null || cd "$root" && cargo metadata --no-deps --format-version 1) |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p' | head -1
}
