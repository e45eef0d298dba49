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

# fabtests_over VERSION PROVIDER
fabtests_over() {
    local name="$2 $1"
    local results=$logs/fabtests/$name
    build scripts/stacks.sh fabtests
    mkdir -p "$logs/fabtests"
    fabtests-config/run.sh "target/tools/fabtests-$1" "$2" "$results"
    scripts/outcomes.sh column docs/fabtests.md "$name" >"$results.baseline"
    scripts/outcomes.sh compare "$results.baseline" "$results"
}

fabtests_117() {
    fabtests_over 1.17 rstream
    [[ -z $long ]] || fabtests_over 1.17 'rstream;ofi_rxm'
}

fabtests_26() {
    fabtests_over 2.6 rstream
    [[ -z $long ]] || fabtests_over 2.6 'rstream;ofi_rxm'
}
