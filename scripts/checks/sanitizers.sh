# AddressSanitizer and ThreadSanitizer in everything: the libraries, the C programs and, for threads,
# the standard library. Both compilers' code reports to one runtime, the Rust toolchain's, which the
# C programs carry because libfabric loads the provider without one.

rust_libraries=$(rustc --print sysroot)/lib/rustlib
sanitizer_target=$PWD/target/sanitizer

# sanitizer_runtime NAME: the archive of asan or tsan.
sanitizer_runtime() {
    compgen -G "$rust_libraries/$rust_host/lib/librustc-*_rt.$1.a"
}

# Why a sanitizer cannot run here, if it cannot.
lacks_sanitizer() {
    sanitizer_runtime "$1" >/dev/null || echo "the toolchain has no runtime of $1 for $rust_host"
    [[ $1 != tsan || -d $rust_libraries/src/rust/library ]] ||
        echo "the toolchain has no component rust-src, of which $1 needs a build"
}

# sanitizer_steps SANITIZER RUNTIME
sanitizer_steps() {
    local missing
    missing=$(lacks_sanitizer "$2")
    step_unless "$missing" "rust-$2" "rust_$2"
    step_unless "$missing" "contract-$2" "contract_$2"
    step_unless "$missing" "easy-$2" "easy_$2"
}

# Cargo with a sanitizer; optimised a little, with every debug assertion. Each unit of code by itself and without debug
# information, which take a sixth off the build each: reports have functions, and lines as well if
# CARGO_PROFILE_DEV_DEBUG asks for them.
cargo_with() {
    local sanitizer=$1 command=$2 flags=(--target "$rust_host" --target-dir "$sanitizer_target")
    local mismatch=''
    if [[ $sanitizer == thread ]]; then
        # The code of a standard library that is not instrumented synchronises unseen.
        flags+=(-Zbuild-std)
    else
        mismatch=-Cunsafe-allow-abi-mismatch=sanitizer
    fi
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$sanitizer $mismatch" CARGO_INCREMENTAL=0 \
        CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_LTO=off CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-false}" \
        cargo "$command" "${flags[@]}" -p rstream -p rdma-easy -p rstream-c -p rdma-verbs \
        -p rstream-protocol -p iwarp-wire \
        --lib --test devices --test iwarp --test typed "${@:3}"
}

# build_with SANITIZER RUNTIME FLAGS_OF_C: the libraries and the C programs. Both sanitizers build the libraries to
# the same place, in turn.
build_with() {
    local sanitizer=$1 runtime=$2 c_flags=$3 folder=$sanitizer_target/$rust_host/debug
    build cargo_with "$sanitizer" build
    nm -D "$folder/librstream_fi.so" | grep "U __${runtime}_"
    nm -D "$folder/librdma_easy.so" | grep "U __${runtime}_"
    nm -D "$folder/librstream_c.so" | grep "U __${runtime}_"
    make_programs "$runtime" all easy sockets_c CC=clang SANITIZE="$c_flags" LIBRARIES="$folder" LDFLAGS="-fno-sanitize=all \
        -rdynamic -Wl,--whole-archive $(sanitizer_runtime "$runtime") -Wl,--no-whole-archive -lm"
}

# The contract, as build_with, and ofi_rxm above message endpoints.
contract_with() {
    local runtime=$2 folder=$sanitizer_target/$rust_host/debug
    local seconds=${long:+120}
    build_with "$@"
    FI_PROVIDER_PATH=$folder FI_PROVIDER=rstream "$programs/$runtime/conformance" -j 2
    FI_PROVIDER_PATH=$folder FI_PROVIDER=rstream "$programs/$runtime/thread_stress" -t "${seconds:-10}"
    FI_PROVIDER_PATH=$folder FI_PROVIDER=rstream "$programs/$runtime/datagrams"
}

# The C face of rdma-verbs, as build_with.
easy_with() {
    build_with "$@"
    with_libraries "$sanitizer_target/$rust_host/debug" "$programs/$2/easy" -j 2
}

# Without the copies that race by design: ThreadSanitizer reports the C library's memcpy. And without the thousands
# of seeds of hubs over simulated devices, which have one thread.
rust_tsan() {
    build cargo_with thread test --no-run
    cargo_with thread test -- --skip copies_may \
        --skip hub::every_message_arrives_once_in_order_and_unchanged --skip hub::a_connection_that_ends_says_so
}

contract_tsan() {
    contract_with thread tsan thread
}

easy_tsan() {
    easy_with thread tsan thread
}

rust_asan() {
    build cargo_with address test --no-run
    cargo_with address test
}

# Undefined behaviour of the C programs ends them by a trap, which needs no runtime.
contract_asan() {
    contract_with address asan 'address,undefined -fsanitize-trap=undefined'
}

easy_asan() {
    easy_with address asan 'address,undefined -fsanitize-trap=undefined'
}

# Attached connections, as build_with. The programs under rstream-run are instrumented, its library is not.
sockets_c_asan() {
    build_sockets_c
    build_with address asan 'address,undefined -fsanitize-trap=undefined'
    sockets_c_with "$sanitizer_target/$rust_host/debug" "$programs/asan/sockets_c" -j 2 "${sockets_c_checked[@]}" misuse
}
