#!/usr/bin/env bash
# Every check of the project, in one command. Prints a line for each step when it ends, and ends with the line
# "N passed, N failed[, N skipped]"; above it stands what was skipped, with the reason, and what failed.
# Logs are in target/test.
#
#   scripts/test.sh [--long] [STEP]...
#
#   --long   the soaks and the whole matrices too, which continuous integration leaves out
#   STEP     only the named steps
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cargo.sh

logs=$PWD/target/test
programs=$PWD/target/c
provider=$PWD/target/release
# The lines that the steps printed, which are what is counted, and "STEP skipped WHAT" of what could not run.
table=$logs/steps
reasons=$logs/skipped
mkdir -p "$logs"
: >"$table"
: >"$reasons"

long=''
wanted=()
for argument in "$@"; do
    case $argument in
        --long) long=yes ;;
        -*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
        *) wanted+=("$argument") ;;
    esac
done

# ---- counting -------------------------------------------------------------------------------

# count LOG: "passed failed skipped" of what ran in it. Rust tests and the C programs end with a
# line of their own; a Rust test that could not run here says "skipped NAME: REASON".
count() {
    awk '
        /^test result:/ {
            for (i = 1; i < NF; i++) {
                if ($(i + 1) ~ /^passed/) p += $i
                if ($(i + 1) ~ /^failed/) f += $i
                if ($(i + 1) ~ /^ignored/) s += $i
            }
        }
        /^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; if (NF > 4) s += $5 }
        /skipped [a-z0-9_]+: / { p--; s++ }
        END { print p + 0, f + 0, s + 0 }
    ' "$1"
}

# ---- steps ----------------------------------------------------------------------------------
# What a step does is a function in one of scripts/checks.

selected() {
    ((${#wanted[@]} == 0)) || [[ " ${wanted[*]} " == *" $1 "* ]]
}

# line NAME RESULT PASSED FAILED SKIPPED SECONDS PROCESSOR_SECONDS: written at once, for several lanes write.
line() {
    printf '%-22s %-7s %5d passed %3d failed %3d skipped %5d s %5d s of processors\n' "$@" | tee -a "$table"
}

# processors PID: seconds of processors that its ended children and theirs have taken.
processors() {
    local fields
    read -ra fields < <(sed 's/.*) //' "/proc/$1/stat")
    echo $(((fields[13] + fields[14]) / $(getconf CLK_TCK)))
}

# Seconds after which a step is ended.
limit=${long:+14400}
limit=${limit:-1800}

# family PID...: these processes, and what they and theirs started.
family() {
    local process children
    for process; do
        echo "$process"
        mapfile -t children < <(pgrep -P "$process")
        family "${children[@]}"
    done
}

end_family() {
    family "$@" | xargs kill -KILL 2>/dev/null || true
}

# overdue PID: says what is left of a step whose time is over, by thread, and ends it.
overdue() {
    echo "error: no end after $limit s"
    ps -L -o pid=,lwp=,stat=,time=,wchan:20=,comm:24=,args= -p "$(family "$1" | paste -sd,)" |
        cut -c -160 | sed 's/^/left: /'
    end_family "$1"
}

# step NAME FUNCTION: runs it with its output in a log. A step without counts of its own is one test.
step() {
    local name=$1 log=$logs/$1.log start=$SECONDS lane=$BASHPID before status=0 running watch p f s result=ok
    selected "$name" || return 0
    before=$(processors "$lane")
    : >"$log"
    # In groups of their own, because bash lets background processes of its own group ignore SIGINT.
    set -m
    (set -e; "$2") >>"$log" 2>&1 </dev/null &
    running=$!
    (sleep "$limit"; overdue "$running") >>"$log" 2>&1 &
    watch=$!
    # Its end is no news.
    disown "$watch"
    set +m
    trap 'end_family "$running" "$watch"' EXIT
    wait "$running" || status=$?
    end_family "$watch"
    trap - EXIT
    read -r p f s < <(count "$log")
    ((p + f + s > 0)) || { ((status == 0)) && p=1 || f=1; }
    # A step that broke off counts, whatever its tests said before.
    ((status == 0 || f > 0)) || f=1
    ((f == 0)) || result=FAILED
    { grep -oE 'skipped [a-z0-9_]+(: | - ).*' "$log" || true; } | sed "s/^/$name /" >>"$reasons"
    line "$name" "$result" "$p" "$f" "$s" $((SECONDS - start)) $(($(processors "$lane") - before))
}

# step_unless REASON NAME FUNCTION: a step that does not run if there is a reason.
step_unless() {
    if [[ -z $1 ]]; then
        step "$2" "$3"
    elif selected "$2"; then
        echo "$2 skipped $1" >>"$reasons"
        line "$2" skipped 0 0 1 0 0
    fi
}

# Why a step that continuous integration leaves out does not run, if so.
left_out() {
    [[ -n $long ]] || ((${#wanted[@]} > 0)) || echo "only with --long or by its name"
}

# beside LANE...: runs functions beside each other, each as a process group, so that all of it ends with this
# script.
beside() {
    local lane
    lanes=()
    set -m
    for lane; do
        "$lane" &
        lanes+=("$!")
    done
    set +m
    trap 'kill -- "${lanes[@]/#/-}" 2>/dev/null' EXIT
    for lane in "${lanes[@]}"; do
        wait "$lane" || { echo "error: a lane broke off"; exit 1; }
    done
    trap - EXIT
}

# ---- what steps share -----------------------------------------------------------------------

with_provider() {
    FI_PROVIDER_PATH=$provider FI_PROVIDER=rstream "$@"
}

# with_libraries FOLDER COMMAND...: where the libraries for C programs of that folder are found.
with_libraries() {
    LD_LIBRARY_PATH=$1 "${@:2}"
}

# build_examples PREFIX CRATE LIBRARY NAME: installs the library there, as the crate's README says, and builds each
# example in C with what pkg-config tells of NAME.
build_examples() {
    local prefix=$1 crate=crates/$2 library=$3 name=$4 example flags
    rm -rf "$prefix"
    install -D -m 755 "$provider/$library" -t "$prefix/lib"
    install -D -m 644 "$crate/include/$name.h" -t "$prefix/include"
    install -D -m 644 "$provider/$name.pc" -t "$prefix/lib/pkgconfig"
    read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig \
        pkg-config --define-variable=prefix="$prefix" --cflags --libs "$name")
    for example in "$crate"/examples/c/*.c; do
        cc -std=c11 -Wall -Wextra -Werror -o "$prefix/$(basename "$example" .c)" "$example" \
            "${flags[@]}" -Wl,-rpath,"$prefix/lib"
    done
}

# readme_lines TEXT: the commands that README.md shows below a line that begins with this text.
readme_lines() {
    awk -v text="$1" '
        index($0, text) == 1 { found = 1 }
        found && /^```/ { if (inside++) exit; next }
        inside
    ' README.md
}

# build COMMAND...: gives way to the tests that run beside it, which have limits of time.
build() (
    renice -n 5 -p "$BASHPID" &>/dev/null || true
    "$@"
)

# cargo_tool NAME: makes sure that cargo finds this program of others.
cargo_tool() {
    PATH=$PATH:$PWD/target/tools/bin
    command -v "$1" >/dev/null ||
        CARGO_PROFILE_DEV_DEBUG=false build cargo install --locked --debug --root target/tools "$1"
}

# Why folders cannot be hidden from a command here, if so.
lacks_namespaces() {
    unshare --user --map-root-user --mount true 2>/dev/null || echo "this machine allows no user namespaces"
}

# ---- reporting ------------------------------------------------------------------------------

# explain STEP: what its log says about its failure.
explain() {
    local log=$logs/$1.log
    echo "failed: $1"
    {
        grep -E -A 20 '^(FAILED|error|left)|panicked at|^test .*(FAILED|has been running)' "$log" |
            grep -vE '^(ok|skipped) |^test .* ok$' | head -60 || true
        echo ...
        tail -n 25 "$log"
    } | sed 's/^/    | /'
    echo "    all of it: $log"
}

# Lines "STEP skipped WHAT", each WHAT once.
group_reasons() {
    awk '
        { step = $1; sub(/^[^ ]+ skipped /, ""); if (!($0 in steps)) order[++n] = $0; steps[$0] = steps[$0] ", " step }
        END { for (i = 1; i <= n; i++) print "skipped: " order[i] " (" substr(steps[order[i]], 3) ")" }
    '
}

# ---- all of them ----------------------------------------------------------------------------

scripts/setup.sh
rust_host=$(rustc -vV | sed -n 's/^host: //p')
source scripts/checks/source.sh
source scripts/checks/rust.sh
source scripts/checks/bare.sh
source scripts/checks/contract.sh
source scripts/checks/libfabric2.sh
source scripts/checks/easy.sh
source scripts/checks/sanitizers.sh
source scripts/checks/valgrind.sh
source scripts/checks/fabtests.sh
source scripts/checks/mpi.sh
source scripts/checks/mpi-suites.sh
source scripts/checks/scale.sh
source scripts/checks/perf.sh
source scripts/checks/instructions.sh
source scripts/checks/system-calls.sh
source scripts/checks/vm.sh
source scripts/checks/rdma.sh
source scripts/checks/fuzzing.sh
source scripts/checks/sockets.sh
source scripts/checks/sockets-c.sh
source scripts/checks/sockets-programs.sh

# What the others use.
provider_and_programs() {
    step formatting formatting
    step release build_release
    step rust-build build_rust
    step c-build build_c
}

# Three lanes that take about as long as each other.

# Builds for the most part, and what computes.
builds() {
    step lints lints
    step documentation documentation
    step conformance-table conformance_table
    step headers headers
    step rust rust_tests
    step shell shell
    step_unless "$(lacks_miri)" miri miri
    sanitizer_steps address asan
    sanitizer_steps thread tsan
    step_unless "$(lacks_sanitizer asan)" sockets-c-asan sockets_c_asan
    step_unless "$(lacks_oldest_rust)" msrv msrv
}

# Tests on this machine, which wait for the most part.
waits() {
    step contract-gcc conformance_gcc
    step contract-iwarp conformance_iwarp
    step cancelled-capture cancelled_capture
    step contract-libfabric-2.5 conformance_libfabric2
    step_unless "$(left_out)" contract-headers-2.1 conformance_headers2
    step faults faults_gcc
    step faults-iwarp faults_iwarp
    step valgrind valgrind_copy
    step valgrind-messages valgrind_messages
    step system-calls system_calls
    step unloading unloading
    step easy easy_gcc
    step easy-valgrind easy_valgrind
    step easy-examples easy_examples
    step copy-matrix matrix
    step copy-matrix-iwarp-2.5 matrix_iwarp_libfabric2
    step fi_info fi_info_checks
    step fi_info-2.5 libfabric2_info
    step scale scale_checks
    step_unless "$(lacks_fabtests 1.17)" fabtests-1.17 fabtests_117
    step_unless "$(lacks_fabtests 2.6)" fabtests-2.6 fabtests_26
    step mpi-jobs mpi_jobs
    step mpi-suites mpi_suites
    step_unless "$(lacks_networks)" mpi-bytes mpi_bytes
    step_unless "$(lacks_networks)" mpi-hosts mpi_hosts
    step_unless "$(lacks_lossy_networks)" mpi-lossy mpi_lossy
    step sockets-model sockets_model
    step sockets-transcripts sockets_transcripts
    step sockets-cases sockets_cases
    step sockets-jitter sockets_jitter
    step sockets-c sockets_c
    step sockets-c-valgrind sockets_c_valgrind
    step sockets-c-example sockets_c_example
    step sockets-programs sockets_programs
    step contract-built-2.1 conformance_built2
    step packages packages
    step_unless "$(left_out)" dependencies dependencies
    step_unless "$(leaves_out_bare)" bare bare
}

# Tests in the virtual machine, and what else computes.
emulated() {
    step vm-itself vm_itself
    step contract-siw conformance_siw
    step contract-rxe conformance_rxe
    step vm-programs vm_programs
    step_unless "$(lacks_fabtests 1.17)" fabtests-rxe fabtests_rxe
    step no-rdma-core without_rdma_core
    step rdma-verbs rdma_verbs
    step easy-siw easy_siw
    step easy-rxe easy_rxe
    step rdma-copies rdma_copies
    step rdma-unplug rdma_unplug
    step models models
    step fuzzing fuzzing
}

# What measures, and wants the processors for itself.
measurements() {
    step mpi mpi
    step perf perf_checks
    step instructions instructions
}

echo
provider_and_programs
beside builds waits emulated
measurements

# ---- the end --------------------------------------------------------------------------------

echo
contract_results
group_reasons <"$reasons"
while read -r name result _; do
    [[ $result != FAILED ]] || explain "$name"
done <"$table"
echo "took $((SECONDS / 60)) min $((SECONDS % 60)) s"
awk '
    { passed += $3; failed += $5; skipped += $7 }
    END {
        printf "%d passed, %d failed", passed, failed
        if (skipped) printf ", %d skipped", skipped
        print ""
        exit failed > 0 || passed == 0
    }
' "$table"
