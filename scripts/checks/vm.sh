# Programs on the kernel's RDMA devices, in a virtual machine.

# What scripts/vm.sh promises of a command: environment, folder, output, status, what it may change, an end.
vm_itself() {
    local found=$logs/vm-itself status=0 reason
    rm -rf "$found"
    mkdir -p "$found"
    FROM_OUTSIDE='a  b' scripts/vm.sh -d '' -w "$found" bash -c '
        echo "$FROM_OUTSIDE" "$PWD" "$1"
        echo of stderr >&2
        echo kept >target/test/vm-itself/kept
        echo lost >target/test/lost
        cat target/test/lost
        exit 7' - 'c  d' >"$found/stdout" 2>"$found/stderr" || status=$?
    ((status == 7))
    diff - "$found/stdout" <<<"a  b $PWD c  d"$'\nlost'
    grep -x 'of stderr' "$found/stderr"
    grep -x kept "$found/kept"
    [[ ! -e $logs/lost ]]
    status=0
    scripts/vm.sh -d '' -t 15 sleep 1000 || status=$?
    ((status == 124))
    echo "1 passed, 0 failed"
    reason=$(lacks_namespaces)
    if [[ -z $reason ]]; then
        beside_modules "$found" scripts/vm.sh -d siw rdma link | grep 'siw1/1 state ACTIVE'
        echo "1 passed, 0 failed"
    else
        echo "skipped vm_beside_modules - $reason"
        echo "0 passed, 0 failed, 1 skipped"
    fi
}

# beside_modules FOLDER COMMAND...: on a machine that has modules of the virtual machine's kernel, as current
# Debian 12 has: in a mount namespace, with layers in the folder.
beside_modules() {
    unshare --user --map-root-user --mount bash -ec '
        mount -t tmpfs tmpfs "$0"
        mkdir "$0/upper" "$0/work"
        mount -t overlay -o "lowerdir=/usr/lib,upperdir=$0/upper,workdir=$0/work" overlay /usr/lib
        mkdir -p "/usr/lib/modules/$(<target/vm/version)/kernel"
        exec "$@"' "$@"
}

# Every line of scripts/vm/manifest. Where the kernel's soft iWARP gets stuck, a new machine begins again there.
vm_programs() {
    local found=$logs/vm from='' machine status
    mkdir -p "$found"
    build cargo build --profile checks --workspace --examples
    build_examples "$programs/vm-easy" rdma-easy librdma_easy.so rdma_easy
    # The folder of mpi-jobs may be built at the same time.
    mpi_build vm-openmpi mpicc.openmpi
    for machine in 1 2 3; do
        status=0
        from=$from with_provider scripts/vm.sh -t 1200 -w "$found" scripts/vm/programs.sh "$found" >"$found/machine-$machine" ||
            status=$?
        cat "$found/machine-$machine"
        ((status == 3)) || return "$status"
        from=$(sed -n 's/^stuck //p' "$found/machine-$machine")
    done
    echo "0 passed, 1 failed"
    return 1
}
