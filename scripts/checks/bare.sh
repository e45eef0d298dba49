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

# Why that does not run, if so: the step `packages` builds the same where the same is hidden.
leaves_out_bare() {
    local reason
    reason=$(left_out)
    echo "${reason:-$(lacks_namespaces)}"
}

# With the oldest Rust that they promise, where rustup has it.
msrv() {
    build cargo "+$oldest_rust" check --locked --target-dir target/msrv "${bare_packages[@]}"
}

# Why that cannot run here, if so.
lacks_oldest_rust() {
    cargo "+$oldest_rust" --version >/dev/null 2>&1 || echo "rustup has no toolchain $oldest_rust here"
}
