#!/usr/bin/env bash
# Runs what applies of an installed fabtests against the rstream provider. Programs that the file
# rstream.exclude names are left out, with its reason.
#
#   FABTESTS_BIN=/usr/bin fabtests-config/run.sh
#
# FABTESTS_BIN is the folder with the fi_* programs (fi_stream_msg is in fabtests up to 1.20).
# FI_PROVIDER_PATH names the folder of librstream_fi.so; target/release unless set. Ends with the
# line "N passed, N failed, N skipped".
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=${FABTESTS_BIN:?name the folder of the fabtests programs: FABTESTS_BIN=... fabtests-config/run.sh}
export FI_PROVIDER_PATH=${FI_PROVIDER_PATH:-$here/../target/release}
export FI_PROVIDER=rstream
limit=60
passed=0
failed=0
skipped=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# fabtests' own status for "this provider cannot": ENODATA and ENOSYS.
not_run=(61 38)

# Programs that are one process, with their arguments; every other one is a server and a client.
declare -A unit_arguments=(
    [fi_getinfo_test]="-p rstream -s 127.0.0.1 127.0.0.1"
    [fi_dom_test]="-p rstream -n 2"
    [fi_eq_test]="-p rstream"
)

# reason NAME: why rstream.exclude leaves the program out; nothing if it does not. The reason is the
# comment that stands last above the pattern.
reason() {
    local line comment=''
    while IFS= read -r line; do
        if [[ $line == '#'* ]]; then
            comment=${line#\# }
        elif [[ -n $line && $1 =~ $line ]]; then
            echo "$comment"
            return
        fi
    done <"$here/rstream.exclude"
}

# result NAME STATUS LOG...
result() {
    local name=$1 status=$2 code
    shift 2
    for code in "${not_run[@]}"; do
        if ((status == code)); then
            skipped=$((skipped + 1))
            echo "skipped $name: it says that the provider lacks what it needs (status $status)"
            return
        fi
    done
    if ((status == 0)); then
        passed=$((passed + 1))
        echo "ok $name"
    else
        failed=$((failed + 1))
        echo "FAILED $name: status $status"
        sed 's/^/    /' "$@"
    fi
}

run_unit() {
    local status=0 arguments
    read -ra arguments <<<"${unit_arguments[$1]}"
    timeout "$limit" "$bin/$1" "${arguments[@]}" >"$logs/unit" 2>&1 || status=$?
    result "$1" "$status" "$logs/unit"
}

# run_pair NAME ADDRESS: a server, and a client when the server had time to listen.
run_pair() {
    local server status=0
    timeout "$limit" "$bin/$1" -p rstream -s "$2" >"$logs/server" 2>&1 &
    server=$!
    sleep 1
    timeout "$limit" "$bin/$1" -p rstream -s "$2" "$2" >"$logs/client" 2>&1 || status=$?
    if ((status != 0)); then
        kill "$server" 2>/dev/null || true
        wait "$server" || true
    else
        wait "$server" || status=$?
    fi
    result "$1 ($2)" "$status" "$logs/server" "$logs/client"
}

shopt -s nullglob
programs=("$bin"/fi_*)
if ((${#programs[@]} == 0)); then
    echo "no fi_* programs in $bin" >&2
    exit 1
fi
for path in "${programs[@]}"; do
    name=${path##*/}
    why=$(reason "$name")
    if [[ -n $why ]]; then
        skipped=$((skipped + 1))
        echo "skipped $name: $why"
    elif [[ -n ${unit_arguments[$name]:-} ]]; then
        run_unit "$name"
    else
        run_pair "$name" 127.0.0.1
        run_pair "$name" ::1
    fi
done
if [[ ! -x $bin/fi_stream_msg ]]; then
    echo "fi_stream_msg is not in $bin: fabtests has had it up to version 1.20" >&2
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
