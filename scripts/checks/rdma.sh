# RDMA devices: the kernel's soft iWARP and soft RoCE, in the virtual machine of scripts/vm.sh.

# Addresses of a kind's second device, which tests listen on.
declare -A rdma_ipv4=([siw]=10.1.0.2 [rxe]=10.2.0.2) rdma_ipv6=([siw]=fd01::2 [rxe]=fd02::2)

# on_device KIND COMMAND...: runs it in the virtual machine, where the tests' addresses are that device's. The programs
# end each of their tests in time, so a machine that does not end is one whose kernel waits for a device for good,
# as soft iWARP's does at times: another one is tried, once.
on_device() {
    local kind=$1 status=0
    shift
    on_device_once "$kind" "$@" || status=$?
    ((status == 124)) || return "$status"
    echo "another machine, as that one did not end"
    on_device_once "$kind" "$@"
}

on_device_once() {
    local kind=$1
    shift
    TEST_IPV4=${rdma_ipv4[$kind]} TEST_IPV6=${rdma_ipv6[$kind]} TEST_FAULT="$PWD/scripts/vm/fault.sh $kind" \
        with_provider scripts/vm.sh -d "$kind" -t 800 "$@"
}

# The suite of the verbs core.
rdma_verbs() {
    local program programs
    programs=$(build rust_test --test ibv --test ibv_typed --no-run --message-format=json | jq -r '.executable // empty')
    for program in $programs; do
        # With huge pages, which Memory::huge maps.
        scripts/vm.sh -t 1200 bash -c 'echo 16 >/proc/sys/vm/nr_hugepages && exec "$@"' - \
            "$program" --test-threads 2 || return 1
    done
}

# Some sections have the devices behave as those of other drivers.
conformance_on() {
    on_device "$1" env LD_PRELOAD="$programs/gcc/other_driver.so" "$programs/gcc/conformance" -j 2
}

conformance_siw() {
    conformance_on siw
}

conformance_rxe() {
    conformance_on rxe
}

# A selection that fits the speed of an emulated machine.
rdma_copy_cases=(
    ipv4-64-64 ipv4-4093-4093 ipv4-65536-65536 ipv6-65521-65521 iwarp-509-509 iwarp-65536-65536 uneven-65536-13
)

# On soft iWARP also where the network is slow: the send ring is used again while TCP still has what it held.
rdma_copies() {
    on_device siw bash -ec '"$@"; $TEST_FAULT slow; "$1" reuse-65536-65536-r8192 reuse-65536-65536-r32768' - \
        "$programs/gcc/copy_matrix" "${rdma_copy_cases[@]}"
    on_device rxe "$programs/gcc/copy_matrix" "${rdma_copy_cases[@]}"
}

# Faults of devices in the middle of a copy.
rdma_unplug() {
    local kind
    for kind in siw rxe; do
        on_device "$kind" scripts/vm/broken_copy.sh "$programs/gcc/stream_copy" "$kind" "${rdma_ipv4[$kind]}" \
            remove down drop
    done
}

# The libraries load on a host without rdma-core: nothing of it is linked, and where its libraries are not
# found discovery and the list of devices have the embedded device, also beside an RDMA device.
without_rdma_core() {
    local hide=$programs/hide_rdma_core.so
    readelf -d "$provider"/lib{rstream_fi,rdma_easy}.so >"$hide.linked"
    build_examples "$programs/hide_easy" rdma-easy librdma_easy.so rdma_easy
    grep NEEDED "$hide.linked"
    cc -shared -fPIC -D_GNU_SOURCE -Wall -Wextra -Werror -o "$hide" ffi-tests/hide_rdma_core.c
    on_device siw bash -ec 'for program; do
            $program | sed "s/^/with: /"; LD_PRELOAD=$0 $program | sed "s/^/without: /"
        done' "$hide" "$programs/gcc/info_probe rstream" "$programs/hide_easy/devices" >"$hide.found"
    cat "$hide.found"
    grep '^with: .*fabric ibv domain siw0' "$hide.found"
    grep '^without: .*fabric iwarp domain siw-0' "$hide.found"
    grep -x 'with: siw0' "$hide.found" && grep -x 'without: iwarp' "$hide.found"
    ! grep -E 'NEEDED.*(ibverbs|rdmacm)' "$hide.linked" && ! grep -E '^without: (.*fabric ibv|siw0)' "$hide.found"
}
