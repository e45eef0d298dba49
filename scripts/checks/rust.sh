# The Rust tests.

# rust_test ARGUMENT...
rust_test() {
    cargo test --profile checks --workspace --exclude c-headers "$@"
}

# The libraries and programs as users build them. Other steps use them.
build_release() {
    build cargo build --release
}

# Before other steps, which need some of it.
build_rust() {
    rust_test --no-run
}

# Without the contract, which has steps of its own.
rust_tests() {
    rust_test --no-fail-fast -- --skip every_line_of_the_contract_holds
}

# Shared memory in every order that two threads can meet, by loom.
models() {
    RUSTFLAGS='--cfg loom' CARGO_PROFILE_TEST_OPT_LEVEL=2 CARGO_PROFILE_TEST_DEBUG=0 \
        build cargo test -p rstream-ring --lib --target-dir target/loom models
}

# The crates without I/O in Rust's interpreter, which sees undefined behaviour.
miri() {
    cargo +nightly miri test -p iwarp-wire -p rstream-protocol
}

# Why that cannot run here, if so.
lacks_miri() {
    cargo +nightly miri --version >/dev/null 2>&1 || echo "no nightly toolchain here has Miri"
}
