# The C contract, through the libfabric that is installed.

# make_programs NAME SETTING...: into a folder of that name.
make_programs() {
    build make -j 2 -C ffi-tests BUILD="$programs/$1" "${@:2}"
}

build_c() {
    make_programs gcc CC=gcc all easy
    make_programs clang CC=clang all easy
}

conformance_gcc() {
    with_provider "$programs/gcc/conformance" -j 4
}

# The embedded device without memory that it shares with a peer on the same host, and the other compiler.
conformance_iwarp() {
    FI_RSTREAM_SHM=0 with_provider "$programs/clang/conformance" -j 4
}

# A capture adds no cancellation point to a call.
cancelled_capture() {
    local capture=$logs/cancelled.pcap
    rm -f "$capture".*
    FI_RSTREAM_PCAP=$capture with_provider "$programs/gcc/conformance" 'cancelled threads of messages'
    # It was made.
    [[ -s $(printf '%s\n' "$capture".* | head -n 1) ]]
}

faults_gcc() {
    with_provider "$programs/gcc/faults" -j 2
}

faults_iwarp() {
    FI_RSTREAM_SHM=0 with_provider "$programs/gcc/faults" -j 2
}

matrix() {
    with_provider "$programs/gcc/copy_matrix"
}

# fi_info knows no stream endpoints by name: without hints it lists them, and info_probe asks.
fi_info_checks() {
    with_provider fi_info -p rstream | grep 'provider: rstream'
    with_provider fi_info -p rstream | grep 'type: FI_EP_SOCK_STREAM'
    with_provider fi_info -p rstream -t FI_EP_MSG | grep 'type: FI_EP_MSG'
    FI_PROVIDER_PATH=$provider fi_info -t FI_EP_RDM | grep -F 'provider: rstream;ofi_rxm'
    [[ $(FI_RSTREAM_IFACE=lo with_provider fi_info -t FI_EP_RDM | sed -n 's/ *domain: //p' | sort -u) == lo ]]
    with_provider "$programs/gcc/info_probe" rstream | grep 'protocol FI_PROTO_RSTREAM '
    with_provider "$programs/gcc/info_probe" iwarp | grep 'protocol FI_PROTO_IWARP '
    with_provider fi_info -e | grep 'FI_RSTREAM_'
    others_unchanged fi_info "$(own_providers)"
}

# The folder in which the installed libfabric looks for loadable providers by itself.
own_providers() {
    env -u FI_PROVIDER_PATH fi_info -e | sed -n '/^# FI_PROVIDER_PATH:/{n;s/.*(default: \(.*\))$/\1/p}'
}

# others_unchanged FI_INFO FOLDER: who asks for other endpoints sees and logs what it does without the
# provider, and its own behind that; no message endpoint of others stands behind its own. FOLDER has the loadable
# providers that this libfabric brings, if any.
others_unchanged() {
    local kind with=$logs/others-with without=$logs/others-without
    for kind in FI_EP_MSG FI_EP_RDM FI_EP_DGRAM; do
        FI_PROVIDER_PATH=$2 logged_info "$1" -t "$kind" >"$without"
        FI_PROVIDER_PATH=$provider:$2 logged_info "$1" -t "$kind" >"$with"
        diff "$without" <(awk '/^[^ ]/ { own = /^provider: rstream/ } !own' "$with")
        diff <(grep -m 1 '^provider' "$without") <(grep -m 1 '^provider' "$with")
    done
    FI_PROVIDER_PATH=$provider:$2 logged_info "$1" -t FI_EP_MSG | own_is_last
}

# Whether there are answers of this provider, and behind them none of others.
own_is_last() {
    awk '
        /^provider: / { own = /^provider: rstream$/; met = met || own; if (met && !own) wrong = 1 }
        END { exit wrong || !met }
    '
}

logged_info() {
    env -u FI_PROVIDER FI_LOG_LEVEL=warn "$@" 2>&1 | sed -E 's/^libfabric:[0-9]+:[0-9]+:/libfabric:/'
}

# What the runs of the program gave, as a table.
contract_results() {
    local runs
    mapfile -t runs < <(sort "$table" |
        awk -v logs="$logs" '/^contract-/ && $2 != "skipped" { print logs "/" $1 ".log" }')
    ((${#runs[@]} > 0)) || return 0
    scripts/contract-results.sh "${runs[@]}" >"$logs/contract-results.md"
    echo "the contract, line by line: $logs/contract-results.md"
}
