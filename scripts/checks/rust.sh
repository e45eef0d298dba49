# The Rust tests.

rust_tests() {
    cargo test --release --workspace --no-fail-fast
}

# The lanes of shared memory in every order that two threads can meet, by loom.
models() {
    RUSTFLAGS='--cfg loom' CARGO_PROFILE_TEST_OPT_LEVEL=2 CARGO_PROFILE_TEST_DEBUG=0 \
        cargo test --lib --target-dir target/loom models
}
