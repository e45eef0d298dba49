# fabtests, libfabric's own tests, against docs/fabtests.md: of the installed libfabric, and of a later one.

# FABTESTS_1_17 and FABTESTS_2_6 name where a fabtests of this version is installed, with its libfabric if that is not
# the system's. Otherwise both are built of the sources.

# named_fabtests VERSION: the one that is named; empty: none.
named_fabtests() {
    local name=FABTESTS_${1//./_}
    echo "${!name-}"
}

# lacks_fabtests VERSION: why it cannot run here, if so.
lacks_fabtests() {
    local archive
    if [[ -z $(named_fabtests "$1") ]]; then
        for archive in fabtests-1.17.0 fabtests-2.6.0 libfabric-2.6.0; do
            [[ -e ../shared/upstream/$archive.tar.bz2 ]] && continue
            echo "the sources of fabtests are not in ../shared/upstream, and FABTESTS_${1//./_} names no installed one"
            return
        done
    fi
    lacks_namespaces
}

# fabtests_over VERSION PROVIDER [DEVICE]: on this machine, or between two devices of this kind in the virtual
# machine.
fabtests_over() {
    local name="$2${3:+ $3} $1" run=(fabtests-config/run.sh) results prefix
    results=$logs/fabtests/$name
    prefix=$(named_fabtests "$1")
    # That of 1.17 fails over every provider.
    [[ $1 == 1.17 ]] || run+=(-t 'unit,regression,functional,short')
    [[ -n $prefix ]] || build scripts/stacks.sh fabtests
    mkdir -p "$logs/fabtests"
    # The other providers would look for their devices at each start of a program, which takes long there.
    [[ -z ${3-} ]] ||
        run=(env FI_PROVIDER=rstream scripts/vm.sh -d "$3" -t 1400 -w "$logs/fabtests" "${run[@]}" -d "$3")
    "${run[@]}" "${prefix:-target/tools/fabtests-$1}" "$2" "$results"
    scripts/outcomes.sh column docs/fabtests.md "$name" >"$results.baseline"
    scripts/outcomes.sh compare "$results.baseline" "$results" || { of_failed "$results.log"; return 1; }
}

# of_failed LOG: what the tests that failed have printed, of both sides.
of_failed() {
    awk '
        /^- name:/ { name = $0 }
        /^  result:/ { fails = $2 == "Fail"; if (fails) print name }
        /^(- name|# -)/ { fails = 0 }
        fails
    ' "$1"
}

# fabtests_readme VERSION: the test that README.md shows, with fewer messages, and with more time for the server's
# start, because other steps run beside it.
fabtests_readme() {
    local prefix lines
    prefix=$(named_fabtests "$1")
    lines=$(readme_lines 'MPI over rstream' | grep -v mpirun)
    lines=${lines/sleep 1/sleep 5}
    PATH=${prefix:-$PWD/target/tools/fabtests-$1}/bin:$PATH scripts/isolated.sh timeout 120 \
        bash -ec "${lines//pingpong/pingpong -I 100}"$'\nwait "$!"' | grep '^64 '
    echo "1 passed, 0 failed"
}

fabtests_117() {
    fabtests_over 1.17 rstream
    fabtests_over 1.17 'rstream;ofi_rxm'
    fabtests_readme 1.17
}

fabtests_26() {
    fabtests_over 2.6 rstream
    fabtests_over 2.6 'rstream;ofi_rxm'
}

fabtests_rxe() {
    fabtests_over 1.17 rstream rxe
}
