#!/usr/bin/env bash
# Every check of the project, in one command. Prints a table of the steps and ends with the line
# "N passed, N failed[, N skipped]"; what was skipped is named above it, with the reason. Logs are in
# target/test.
#
#   scripts/test.sh [STEP]...     only the named steps (names as in the table)
set -euo pipefail
cd "$(dirname "$0")/.."

logs=$PWD/target/test
programs=$PWD/target/c
provider=$PWD/target/release
mkdir -p "$logs"

wanted=("$@")
passed=0
failed=0
skipped=0
reasons=()

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
    printf '%-16s ' "$name"
    # Not with "||": bash would ignore set -e inside.
    set +e
    (set -e; "$2") >"$log" 2>&1 </dev/null
    status=$?
    set -e
    seconds=$((SECONDS - start))
    read -r p f s < <(count "$log")
    ((p + f + s > 0)) || { ((status == 0)) && p=1 || f=1; }
    # A step that broke off counts, whatever its tests said before.
    ((status == 0 || f > 0)) || f=1
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    while IFS= read -r line; do
        reasons+=("$name: $line")
    done < <(grep -oE 'skipped [a-z0-9_]+(: | - ).*' "$log" || true)
    result=ok
    ((f == 0)) || result=FAILED
    printf '%-6s %5d passed %3d failed %3d skipped %5d s\n' "$result" "$p" "$f" "$s" "$seconds"
    if ((f > 0)); then
        { grep -E -A 4 '^(FAILED|error)|panicked at|^test .*FAILED' "$log" || tail -n 25 "$log"; } |
            head -60 | sed 's/^/    | /'
        echo "    all of it: $log"
    fi
}

# omit NAME REASON: a step that cannot run here.
omit() {
    selected "$1" || return 0
    printf '%-16s skipped\n' "$1"
    skipped=$((skipped + 1))
    reasons+=("$1: $2")
}

with_provider() {
    FI_PROVIDER_PATH=$provider FI_PROVIDER=rstream "$@"
}

formatting() {
    cargo fmt --check
}

lints() {
    cargo clippy --all-targets -- -D warnings
}

documentation() {
    RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps
}

# The build writes include/rstream.h from the Rust source: what is checked in must be that.
header() {
    local before=$logs/rstream.h.before
    cp include/rstream.h "$before"
    cargo build --release
    diff -u "$before" include/rstream.h
}

rust_tests() {
    cargo test --release --no-fail-fast
}

build_c() {
    make -C ffi-tests BUILD="$programs/gcc" CC=gcc
    make -C ffi-tests BUILD="$programs/clang" CC=clang
    make -C ffi-tests BUILD="$programs/asan" CC=gcc SANITIZE=address,undefined
}

conformance_gcc() {
    with_provider "$programs/gcc/conformance"
}

conformance_clang() {
    with_provider "$programs/clang/conformance"
}

conformance_asan() {
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        with_provider "$programs/asan/conformance"
}

# Reads and writes of memory, and what is never freed, as valgrind sees them.
valgrind_copy() {
    local port='' receiver
    rm -f "$logs/valgrind-recv.log"
    with_provider valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
        "$programs/gcc/stream_copy" recv -q -p 0 -a 127.0.0.1 -o "$logs/valgrind.out" \
        >"$logs/valgrind-recv.log" 2>&1 &
    receiver=$!
    for _ in {1..400}; do
        port=$(sed -n 's/^listening on .* port \([0-9]*\)$/\1/p' "$logs/valgrind-recv.log" 2>/dev/null || true)
        [[ -n $port ]] && break
        sleep 0.05
    done
    head -c 3000001 "$provider/librstream_fi.so" |
        with_provider valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
            "$programs/gcc/stream_copy" send -q -p "${port:?the receiver did not start}" 127.0.0.1
    wait "$receiver" || { cat "$logs/valgrind-recv.log"; return 1; }
    cmp <(head -c 3000001 "$provider/librstream_fi.so") "$logs/valgrind.out"
}

matrix() {
    with_provider "$programs/gcc/copy_matrix"
}

# fi_info knows no stream endpoints by name: without hints it lists them, and info_probe asks.
fi_info_checks() {
    local kind
    with_provider fi_info -p rstream | grep 'provider: rstream'
    with_provider fi_info -p rstream | grep 'type: FI_EP_SOCK_STREAM'
    with_provider "$programs/gcc/info_probe" rstream | grep 'protocol FI_PROTO_RSTREAM '
    with_provider "$programs/gcc/info_probe" iwarp | grep 'protocol FI_PROTO_IWARP '
    with_provider fi_info -e | grep 'FI_RSTREAM_'
    for kind in FI_EP_MSG FI_EP_RDM FI_EP_DGRAM; do
        diff <(env -u FI_PROVIDER -u FI_PROVIDER_PATH fi_info -t "$kind" 2>&1) \
            <(env -u FI_PROVIDER FI_PROVIDER_PATH="$provider" fi_info -t "$kind" 2>&1)
    done
}

# Each target for a bounded time, with AddressSanitizer. A new input goes to the log folder, not to
# the corpus that is checked in.
fuzzing() {
    local target found=$logs/fuzz
    command -v cargo-fuzz >/dev/null || cargo install --locked --root target/tools cargo-fuzz
    PATH=$PWD/target/tools/bin:$PATH
    for target in $(cargo fuzz list); do
        mkdir -p "$found/$target"
        RUSTC_BOOTSTRAP=1 cargo fuzz run "$target" "$found/$target" "fuzz/corpus/$target" -- \
            -max_total_time=20 -timeout=10 -rss_limit_mb=2048
        echo "1 passed, 0 failed"
    done
}

# ---- all of them ----------------------------------------------------------------------------

scripts/setup.sh
echo
step formatting formatting
step lints lints
step documentation documentation
step header header
step rust rust_tests
step c-build build_c
step contract-gcc conformance_gcc
step contract-clang conformance_clang
step contract-asan conformance_asan
step valgrind valgrind_copy
step copy-matrix matrix
step fi_info fi_info_checks
step fuzzing fuzzing

echo
for reason in "${reasons[@]}"; do
    echo "skipped: $reason"
done
echo "took $((SECONDS / 60)) min $((SECONDS % 60)) s"
summary="$passed passed, $failed failed"
((skipped == 0)) || summary+=", $skipped skipped"
echo "$summary"
((failed == 0 && passed > 0))
