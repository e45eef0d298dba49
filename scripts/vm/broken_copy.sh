#!/usr/bin/env bash
# Inside the virtual machine: something befalls an RDMA device while a file streams over it. Both sides must say
# so and end by themselves; once it is mended the same programs copy again.
#
#   scripts/vm/broken_copy.sh STREAM_COPY KIND ADDRESS FAULT...     (siw 10.1.0.2 remove, see fault.sh)
set -euo pipefail
source "$(dirname "$0")/pair.sh"

copy=$1 kind=$2 address=$3
fault="$(dirname "$0")/fault.sh $kind"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export FI_RSTREAM_KEEPALIVE_S=1

# transfer BYTES: starts a receiver and a sender, as the processes $receiver and $sender
transfer() {
    rm -f "$folder"/received*
    start_server "$copy recv -q -p 7471 -a $address -o $folder/received >$folder/recv.log 2>&1"
    receiver=$server
    head -c "$1" /dev/zero | "$copy" send -q -p 7471 "$address" >"$folder/send.log" 2>&1 &
    sender=$!
}

# within SECONDS COMMAND...: whether it succeeds in that time, asked again and again
within() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

# arrives: whether bytes are there, under whatever name until the copy is whole
arrives() {
    [[ -n $(find "$folder" -name 'received*' -size +0) ]]
}

has_ended() {
    [[ ! -d /proc/$1 ]]
}

# outcome PROCESS: its exit status, or 124 if it goes on for ten seconds
outcome() {
    local status=0
    within 10 has_ended "$1" || true
    kill -9 "$1" 2>/dev/null && return 124
    wait "$1" || status=$?
    return "$status"
}

# breaks FAULT: a copy in the middle of which it happens, and one after it
breaks() {
    local process status
    transfer 100G
    within 30 arrives || { cat "$folder"/*.log; echo "the copy did not begin"; return 1; }
    $fault "$1"
    for process in "$receiver" "$sender"; do
        status=0
        outcome "$process" || status=$?
        ((status == 1)) || { cat "$folder"/*.log; echo "ended with status $status after $1"; return 1; }
    done
    cat "$folder"/*.log
    ! grep -i panicked "$folder"/*.log || return
    $fault mend
    transfer 1M
    for process in "$sender" "$receiver"; do
        outcome "$process" || { cat "$folder"/*.log; echo "no copy after $1 was mended"; return 1; }
    done
    [[ $(stat -c %s "$folder/received") == 1048576 ]]
}

for what in "${@:4}"; do
    breaks "$what" || { echo "0 passed, 1 failed"; exit 1; }
    echo "1 passed, 0 failed"
done
