# The crates that need nothing but Rust: those in the folder crates.

bare_packages=(crates/*/Cargo.toml)
bare_packages=("${bare_packages[@]%/Cargo.toml}")
bare_packages=("${bare_packages[@]/#crates\//--package=}")
# The oldest Rust that they promise to be built with.
oldest_rust=$(sed -n '/^\[workspace.package\]/,/^$/s/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# without_libraries COMMAND...: where libfabric, the headers of rdma-core and libclang are not to be found.
without_libraries() {
    unshare --user --map-root-user --mount bash -ec '
        for hidden in /usr/include/{rdma,infiniband} /usr/lib/llvm-* /usr/{lib,lib/*,share}/pkgconfig; do
            [[ ! -d $hidden ]] || mount -t tmpfs tmpfs "$hidden"
        done
        for hidden in /usr/lib/*/lib{clang,fabric,ibverbs,rdmacm}*.{a,so*}; do
            [[ ! -f $hidden || -L $hidden ]] || mount --bind /dev/null "$hidden"
        done
        "$@"' - "$@"
}

# In a folder that no other build has left anything in.
bare() {
    without_libraries bash -c '! pkg-config --exists libfabric && ! pkg-config --exists libibverbs &&
        ! gcc -E -include infiniband/verbs.h -xc /dev/null && ! gcc -E -include rdma/fabric.h -xc /dev/null &&
        ! clang --version'
    build without_libraries cargo test --target-dir target/bare "${bare_packages[@]}" --no-run
    without_libraries cargo test --target-dir target/bare "${bare_packages[@]}"
}

# With the oldest Rust that they promise, in a root folder that has that and a linker.
msrv() {
    local root=$PWD/target/tools/rust-$oldest_rust cargo_home=${CARGO_HOME:-$HOME/.cargo}
    if ! scripts/stacks.sh "rust-$oldest_rust"; then
        echo "skipped oldest_rust - Rust $oldest_rust cannot be fetched"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    cargo fetch --locked --target "$rust_host"
    build unshare --user --map-root-user --mount bash -ec '
        for shared in /proc /dev "$2" "$3"; do
            mkdir -p "$1$shared"
            mount --rbind "$shared" "$1$shared"
        done
        chroot=$(command -v chroot)
        PATH=$4:/usr/bin CARGO_HOME=$3 RUSTFLAGS=-Clinker=gcc exec "$chroot" "$1" "${@:5}"
    ' - "$root" "$PWD" "$cargo_home" "/usr/lib/rust-$oldest_rust/bin" \
        cargo check --manifest-path "$PWD/Cargo.toml" --locked --offline \
        --target-dir "$PWD/target/msrv" "${bare_packages[@]}"
}
