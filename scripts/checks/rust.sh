# The Rust tests.

rust_tests() {
    cargo test --release --no-fail-fast
}
