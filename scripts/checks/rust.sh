# The Rust tests.

# Without the contract, which has steps of its own.
rust_tests() {
    cargo test --profile checks --workspace --no-fail-fast -- --skip every_line_of_the_contract_holds
}

# The lanes of shared memory in every order that two threads can meet, by loom.
models() {
    RUSTFLAGS='--cfg loom' CARGO_PROFILE_TEST_OPT_LEVEL=2 CARGO_PROFILE_TEST_DEBUG=0 \
        cargo test -p rdma-verbs --lib --target-dir target/loom models
}
