# Fuzzing of everything that a peer sends.

# Each target for a bounded time, with AddressSanitizer. A new input goes to the log folder, not to
# the corpus that is checked in.
fuzzing() {
    local target found=$logs/fuzz seconds=${long:+120}
    cargo_tool cargo-fuzz
    export RUSTC_BOOTSTRAP=1
    build cargo fuzz build
    for target in $(cargo fuzz list); do
        mkdir -p "$found/$target"
        cargo fuzz run "$target" "$found/$target" "fuzz/corpus/$target" -- \
            -max_total_time="${seconds:-12}" -timeout=10 -rss_limit_mb=2048
        echo "1 passed, 0 failed"
    done
}
