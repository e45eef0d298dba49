#!/usr/bin/env bash
# Inside the virtual machine: a stream beside rdma-core's own benchmarks on the same device, in turns.
#
#   scripts/vm/ratio.sh STREAM_BENCH KIND [ROUNDS]     (siw or rxe; 5 rounds unless given)
#
# Only the ratios mean anything: this is an emulation.
set -euo pipefail

bench=$1 kind=$2 rounds=${3:-5}
server=${TEST_IPV4:?the address of the second device}
size=65536 count=2000 trips=3000

# against PROGRAM ARGUMENTS...: what PROGRAM's client says of the device, its last line of figures
against() {
    "$@" -d "${kind}1" >/dev/null 2>&1 &
    sleep 1
    "$@" -d "${kind}0" "$server" 2>/dev/null | awk '/^ *[0-9]+ +[0-9]+ /{ line = $0 } END { print line }'
    wait
}

for ((round = 1; round <= rounds; round++)); do
    echo "round $round"
    echo "  ib_write_bw, MiB/s average:    $(against ib_write_bw -R -F -s $size -n $count | awk '{ print $4 }')"
    echo "  ib_write_lat, us one way:      $(against ib_write_lat -R -F -s 64 -n $trips | awk '{ print $5 " typical, " $6 " average" }')"
    "$bench" 1 $((size * count >> 20)) $trips | sed 's/^/  /'
done
