# fabtests, libfabric's own tests, against docs/fabtests.md: of the installed libfabric, and of a later one.

# Why it cannot run here, if so.
lacks_fabtests() {
    local archive
    for archive in fabtests-1.17.0 fabtests-2.6.0 libfabric-2.6.0; do
        [[ -e ../shared/upstream/$archive.tar.bz2 ]] ||
            { echo "the sources of fabtests are not in ../shared/upstream"; return; }
    done
    lacks_namespaces
}

# fabtests_over VERSION PROVIDER [DEVICE]: on this machine, or between two devices of this kind in the virtual
# machine.
fabtests_over() {
    local name="$2${3:+ $3} $1" run=(fabtests-config/run.sh)
    local results=$logs/fabtests/$name
    build scripts/stacks.sh fabtests
    mkdir -p "$logs/fabtests"
    # The other providers would look for their devices at each start of a program, which takes long there.
    [[ -z ${3-} ]] ||
        run=(env FI_PROVIDER=rstream scripts/vm.sh -d "$3" -t 500 -w "$logs/fabtests" "${run[@]}" -d "$3")
    "${run[@]}" "target/tools/fabtests-$1" "$2" "$results"
    scripts/outcomes.sh column docs/fabtests.md "$name" >"$results.baseline"
    scripts/outcomes.sh compare "$results.baseline" "$results"
}

fabtests_117() {
    fabtests_over 1.17 rstream
    fabtests_over 1.17 'rstream;ofi_rxm'
}

fabtests_26() {
    fabtests_over 2.6 rstream
    fabtests_over 2.6 'rstream;ofi_rxm'
}

fabtests_rxe() {
    fabtests_over 1.17 rstream rxe
}
