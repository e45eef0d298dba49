# Checks of what is written: format, lints, documentation, the generated header.

formatting() {
    cargo fmt --all --check
}

lints() {
    cargo clippy --workspace --all-targets -- -D warnings
}

documentation() {
    RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps
}

# The build writes include/rstream.h from the Rust source: what is checked in must be that.
header() {
    local before=$logs/rstream.h.before
    cp include/rstream.h "$before"
    cargo build --release
    diff -u "$before" include/rstream.h
}
