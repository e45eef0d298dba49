#!/usr/bin/env bash
# Inside the virtual machine: takes an RDMA device away while a file streams over it. Both sides must say so
# and end by themselves; with the device back the same programs copy again.
#
#   scripts/vm/unplug.sh STREAM_COPY KIND ADDRESS     (siw 10.1.0.2)
set -euo pipefail

copy=$1 kind=$2 address=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# transfer BYTES: starts a receiver and a sender, as the processes $receiver and $sender
transfer() {
    "$copy" recv -q -p 7471 -a "$address" -o "$folder/received" >"$folder/recv.log" 2>&1 &
    receiver=$!
    sleep 2
    head -c "$1" /dev/zero | "$copy" send -q -p 7471 "$address" >"$folder/send.log" 2>&1 &
    sender=$!
}

# outcome PROCESS: its exit status, or 124 if it goes on for ten seconds
outcome() {
    local tenths status=0
    for ((tenths = 0; tenths < 100; tenths++)); do
        [[ -d /proc/$1 ]] || break
        sleep 0.1
    done
    kill -9 "$1" 2>/dev/null && return 124
    wait "$1" || status=$?
    return "$status"
}

transfer 100G
sleep 4
[[ -d /proc/$sender && -d /proc/$receiver ]] || { cat "$folder"/*.log; echo "the copy did not begin"; exit 1; }
timeout 30 rdma link del "${kind}1"
for process in "$receiver" "$sender"; do
    status=0
    outcome "$process" || status=$?
    ((status == 1)) || { cat "$folder"/*.log; echo "ended with status $status after the device was gone"; exit 1; }
done
cat "$folder"/*.log
! grep -i panicked "$folder"/*.log

rdma link add "${kind}1" type "$kind" netdev "$kind-1"
transfer 1M
for process in "$sender" "$receiver"; do
    outcome "$process" || { cat "$folder"/*.log; echo "no copy after the device came back"; exit 1; }
done
[[ $(stat -c %s "$folder/received") == 1048576 ]]
echo "1 passed, 0 failed"
