# Finds Rust's programs where rustup puts them, for shells whose PATH does not say so. To be sourced.
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
