# libfabric 2: the library 2.5.1 that MPICH's wheel brings, headers and tools 2.1 of Debian 13.

libfabric2=$PWD/target/tools/mpich/lib/mpich
debian13=$PWD/target/tools/trixie

with_libfabric2() {
    LD_LIBRARY_PATH=$libfabric2 "$@"
}

# What is not of Debian 13 (rdma-core) is found where it always is.
with_headers2() {
    local pkgconfig
    pkgconfig=usr/lib/$(gcc -print-multiarch)/pkgconfig
    PKG_CONFIG_SYSROOT_DIR=$debian13 PKG_CONFIG_LIBDIR=$debian13/$pkgconfig:/$pkgconfig "$@"
}

# The provider and the programs as they are, built against 1.17.
conformance_libfabric2() {
    scripts/stacks.sh
    with_libfabric2 ldd "$programs/gcc/conformance" | grep "$libfabric2/libfabric.so.1"
    with_libfabric2 with_provider "$programs/gcc/conformance" -j 4
}

matrix_iwarp_libfabric2() {
    scripts/stacks.sh
    FI_RSTREAM_SHM=0 with_libfabric2 with_provider "$programs/gcc/copy_matrix"
}

libfabric2_info() {
    scripts/stacks.sh
    with_libfabric2 "$debian13/usr/bin/fi_info" --version | grep '^libfabric: 2\.5'
    with_libfabric2 with_provider "$debian13/usr/bin/fi_info" -p rstream | grep 'provider: rstream'
    with_libfabric2 with_provider "$debian13/usr/bin/fi_info" -p rstream -t FI_EP_MSG | grep 'type: FI_EP_MSG'
    FI_PROVIDER_PATH=$provider with_libfabric2 "$debian13/usr/bin/fi_info" -t FI_EP_RDM |
        grep -F 'provider: rstream;ofi_rxm'
    with_libfabric2 with_provider "$programs/gcc/info_probe" | grep 'protocol FI_PROTO_RSTREAM '
    with_libfabric2 others_unchanged "$debian13/usr/bin/fi_info" "$libfabric2/libfabric"
}

# Programs built against headers 2.1, for which FI_EP_SOCK_STREAM is no endpoint type any more, with
# the library 1.17.
conformance_headers2() {
    scripts/stacks.sh
    grep -E '^#define FI_EP_SOCK_STREAM\s+FI_EP_UNSPEC' "$debian13/usr/include/rdma/fabric.h"
    with_headers2 make_programs headers2 CC=clang LDLIBS=-lfabric
    with_provider "$programs/headers2/conformance" -j 4
}

# Programs and provider built against 2; such a provider is not for 1.17, and does no harm there. Optimised a little:
# the tests take less time by more than this takes.
conformance_built2() {
    local provider=$PWD/target/$rust_host/debug own
    own=$(own_providers)
    scripts/stacks.sh
    with_headers2 make_programs built2 CC=gcc LDLIBS="$libfabric2/libfabric.so.1"
    CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_OPT_LEVEL=1 with_headers2 build cargo build -p rstream --lib --target "$rust_host"
    with_libfabric2 with_provider "$programs/built2/conformance" -j 4
    diff <(FI_PROVIDER_PATH=$own fi_info -l 2>&1) <(FI_PROVIDER_PATH=$provider:$own fi_info -l 2>&1)
}
