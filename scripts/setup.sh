#!/usr/bin/env bash
# Installs what building and testing need: Debian packages by apt-get, if any is missing. Running it
# again changes nothing. Rust itself is not installed here.
set -euo pipefail
source "$(dirname "$0")/cargo.sh"

packages=(
    procps libfabric-dev libfabric-bin pkg-config gcc g++ clang libclang-dev make shellcheck
    tshark iproute2 bzip2 jq valgrind openmpi-bin libopenmpi-dev python3-venv
    qemu-system-x86 busybox-static kmod cpio gcc-12 libibverbs-dev librdmacm-dev ibverbs-providers rdmacm-utils ibverbs-utils perftest
    redis-server redis-tools nginx-light apache2-utils curl libpython3.11-testsuite
    memcached libmemcached-tools haproxy postgresql iperf3 socat rsync wrk libglib2.0-tests
)

# Others than Debian's will do.
command -v node >/dev/null || packages+=(nodejs)
command -v javac >/dev/null || packages+=(openjdk-17-jdk-headless)

installed() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'
}

if ! command -v dpkg-query >/dev/null; then
    echo "setup: no dpkg here; install by hand what these Debian packages hold: ${packages[*]}" >&2
else
    missing=()
    for package in "${packages[@]}"; do
        installed "$package" || missing+=("$package")
    done
    if ((${#missing[@]} > 0)); then
        if ((EUID != 0)); then
            echo "setup: these packages are missing, and installing them needs root:" >&2
            echo "setup:   sudo apt-get install ${missing[*]}" >&2
            exit 1
        fi
        echo "setup: installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        # Servers are installed, and not started.
        policy=/usr/sbin/policy-rc.d
        if [[ ! -e $policy ]]; then
            trap 'rm -f "$policy"' EXIT
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod 755 "$policy"
        fi
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
fi

if ! command -v cargo >/dev/null; then
    echo "setup: no cargo in PATH or ${CARGO_HOME:-$HOME/.cargo}/bin: install Rust first (https://rustup.rs)" >&2
    exit 1
fi
if [[ ! -d $(rustc --print sysroot)/lib/rustlib/src/rust/library ]] && command -v rustup >/dev/null; then
    # ThreadSanitizer needs a standard library of its own; without the source its steps are skipped.
    rustup --quiet component add rust-src || true
fi
if ! pkg-config --atleast-version=1.17 libfabric; then
    echo "setup: libfabric 1.17 or later is needed, pkg-config found $(pkg-config --modversion libfabric || echo none)" >&2
    exit 1
fi
echo "setup: ready ($(cargo --version | cut -d' ' -f1,2), libfabric $(pkg-config --modversion libfabric))"
