#!/usr/bin/env bash
# Every check of the project, in one command. Prints a table of the steps and ends with the line
# "N passed, N failed[, N skipped]"; above it stands what was skipped, with the reason, and what failed.
# Logs are in target/test.
#
#   scripts/test.sh [STEP]...     only the named steps (names as in the table)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cargo.sh

logs=$PWD/target/test
programs=$PWD/target/c
provider=$PWD/target/release
mkdir -p "$logs"

wanted=("$@")
passed=0
failed=0
skipped=0
reasons=()
failures=()
# NAME=LOG of each run of the conformance program.
contract_runs=()

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
    local name
    ((${#wanted[@]} == 0)) && return 0
    for name in "${wanted[@]}"; do
        [[ $name == "$1" ]] && return 0
    done
    return 1
}

# step NAME FUNCTION: runs it with its output in a log. A step without counts of its own is one test.
step() {
    local name=$1 log=$logs/$1.log start=$SECONDS status=0 p f s result seconds line
    selected "$name" || return 0
    printf '%-22s ' "$name"
    # Not with "||": bash would ignore set -e inside.
    set +e
    (set -e; "$2") >"$log" 2>&1 </dev/null
    status=$?
    set -e
    seconds=$((SECONDS - start))
    [[ $name != contract-* ]] || contract_runs+=("${name#contract-}=$log")
    read -r p f s < <(count "$log")
    ((p + f + s > 0)) || { ((status == 0)) && p=1 || f=1; }
    # A step that broke off counts, whatever its tests said before.
    ((status == 0 || f > 0)) || f=1
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    while IFS= read -r line; do
        reasons+=("$name $line")
    done < <(grep -oE 'skipped [a-z0-9_]+(: | - ).*' "$log" || true)
    result=ok
    ((f == 0)) || result=FAILED
    printf '%-6s %5d passed %3d failed %3d skipped %5d s\n' "$result" "$p" "$f" "$s" "$seconds"
    ((f == 0)) || failures+=("$name")
}

# explain STEP: what its log says about its failure.
explain() {
    local log=$logs/$1.log
    echo "failed: $1"
    { grep -E -A 4 '^(FAILED|error)|panicked at|^test .*FAILED' "$log" || tail -n 25 "$log"; } |
        head -60 | sed 's/^/    | /'
    echo "    all of it: $log"
}

# Lines "STEP skipped WHAT", each WHAT once.
group_reasons() {
    awk '
        { step = $1; sub(/^[^ ]+ skipped /, ""); if (!($0 in steps)) order[++n] = $0; steps[$0] = steps[$0] ", " step }
        END { for (i = 1; i <= n; i++) print "skipped: " order[i] " (" substr(steps[order[i]], 3) ")" }
    '
}

# omit NAME REASON: a step that cannot run here.
omit() {
    selected "$1" || return 0
    printf '%-22s skipped\n' "$1"
    skipped=$((skipped + 1))
    reasons+=("$1 skipped $2")
}

with_provider() {
    FI_PROVIDER_PATH=$provider FI_PROVIDER=rstream "$@"
}

scripts/setup.sh
for file in scripts/checks/*.sh; do
    # shellcheck source=/dev/null
    source "$file"
done

# ---- all of them ----------------------------------------------------------------------------

echo
step formatting formatting
step lints lints
step documentation documentation
step packages packages
step conformance-table conformance_table
step header header
step rust rust_tests
step models models
step c-build build_c
step contract-gcc conformance_gcc
step contract-iwarp conformance_iwarp
step contract-libfabric-2.5 conformance_libfabric2
step contract-headers-2.1 conformance_headers2
step contract-built-2.1 conformance_built2
sanitizer_steps address asan
sanitizer_steps thread tsan
step faults faults_gcc
step faults-iwarp faults_iwarp
step valgrind valgrind_copy
step copy-matrix matrix
step copy-matrix-iwarp-2.5 matrix_iwarp_libfabric2
step fi_info fi_info_checks
step fi_info-2.5 libfabric2_info
step unloading unloading
step mpi mpi
step scale scale_checks
step perf perf_checks
step instructions instructions
step vm-itself vm_itself
step vm-programs vm_programs
step no-rdma-core without_rdma_core
step rdma-verbs rdma_verbs
step contract-siw conformance_siw
step contract-rxe conformance_rxe
step rdma-copies rdma_copies
step rdma-unplug rdma_unplug
step fuzzing fuzzing
step results contract_results

echo
! selected results || cat "$contract_table"
((skipped == 0)) || printf '%s\n' "${reasons[@]}" | group_reasons
for name in "${failures[@]}"; do
    explain "$name"
done
echo "took $((SECONDS / 60)) min $((SECONDS % 60)) s"
summary="$passed passed, $failed failed"
((skipped == 0)) || summary+=", $skipped skipped"
echo "$summary"
((failed == 0 && passed > 0))
