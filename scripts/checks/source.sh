# Checks of what is written: format, lints, documentation, shell, the generated header, dependencies.

formatting() {
    cargo fmt --all --check
}

lints() {
    build cargo clippy --workspace --all-targets -- -D warnings
}

documentation() {
    RUSTDOCFLAGS=-Dwarnings build cargo doc --workspace --no-deps
    # Features that nothing turns on but tests.
    RUSTDOCFLAGS=-Dwarnings build cargo doc -p rstream-net --no-deps --all-features
}

# What .shellcheckrc asks for, also of the files that these source.
shell() {
    shellcheck --check-sourced .ci/run fabtests-config/run.sh scripts/*.sh scripts/vm/*.sh scripts/vm/init
}

# What would be published builds by itself and without libraries of RDMA, with the other packages as they would be
# published, and holds nothing but sources, documents and licences.
packages() {
    local folder stray packages=() hidden=()
    [[ -n $(lacks_namespaces) ]] || hidden=(without_libraries)
    # Cargo takes a version that it has built from a package before for what it was then.
    rm -rf target/packaged "${CARGO_HOME:-$HOME/.cargo}"/registry/{src,cache,index}/-*
    for folder in crates/*; do
        packages+=(-p "${folder#crates/}")
    done
    CARGO_PROFILE_DEV_DEBUG=false build "${hidden[@]}" cargo package --allow-dirty --target-dir target/packaged "${packages[@]}"
    stray=$(cargo package --allow-dirty --list "${packages[@]}" | grep -vE \
        '^(|\.cargo_vcs_info\.json|Cargo\.(lock|toml|toml\.orig)|LICENSE-(APACHE|MIT)|[a-zA-Z]+\.md|((src|examples|tests|benches)/.*|build)\.rs|cbindgen\.toml|include/.*\.h)$' ||
        true)
    [[ -z $stray ]] || { echo "files that no package needs: $stray"; return 1; }
}

# Each requirement of the iWARP RFCs that is met is cited in code and in a test, as the table says.
conformance_table() {
    cargo run -q -p conformance-table -- --check
}

# The C headers are written from the Rust sources: what is checked in must be that.
headers() {
    build cargo run -q -p c-headers -- --check
}

# Licences, sources and versions of what is built in, as deny.toml allows them; what is known against them,
# if the database of that can be reached.
dependencies() {
    cargo_tool cargo-deny
    cargo deny check licenses bans sources
    echo "1 passed, 0 failed"
    if cargo deny fetch db; then
        cargo deny --offline check advisories
        echo "1 passed, 0 failed"
    else
        echo "skipped advisories - the database of RustSec cannot be reached"
        echo "0 passed, 0 failed, 1 skipped"
    fi
}
