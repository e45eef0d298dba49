#!/usr/bin/env bash
# Inside the virtual machine: what befalls the devices of a kind, for programs that go on meanwhile.
#
#   scripts/vm/fault.sh KIND drop      what either device sends is lost, and nobody is told
#   scripts/vm/fault.sh KIND slow      what either device sends takes 10 ms, and one packet of a hundred is lost
#   scripts/vm/fault.sh KIND down      the port of the second device goes down
#   scripts/vm/fault.sh KIND up        and comes up again
#   scripts/vm/fault.sh KIND remove    the second device is taken away, once every program has let go of it
#   scripts/vm/fault.sh KIND mend      all is as it was before
set -euo pipefail
source "$(dirname "$0")/devices.sh"

kind=$1
# A removal that goes on holds this lock.
exec 9>"/run/$kind.lock"
flock 9

# queue VERB...: what either end does with packets to send. The kernel has queues that lose and delay them.
queue() {
    tc qdisc "$1" dev "$kind-0" root "${@:2}"
    tc qdisc "$1" dev "$kind-1" root "${@:2}"
}

ports_up() {
    local family
    for family in 4 6; do
        { up "$family" "$kind" 0; up "$family" "$kind" 1; } | ip "-$family" -batch -
    done
}

mend() {
    queue del 2>/dev/null || true
    # Soft RoCE's queue pair for connection messages fails for good when it has one to send and no route:
    # the device has to be made anew.
    if [[ $kind == rxe && -z $(ip link show "$kind-1" up) ]]; then
        rdma link del "${kind}1"
    fi
    ports_up
    rdma link show "${kind}1/1" >/dev/null 2>&1 || rdma link add "${kind}1" type "$kind" netdev "$kind-1"
}

case $2 in
    drop) queue add blackhole ;;
    slow) modprobe sch_netem && queue add netem delay 10ms loss 1% limit 10000 ;;
    down) ip link set "$kind-1" down ;;
    up) ports_up ;;
    remove) rdma link del "${kind}1" >/dev/null & ;;
    mend) mend ;;
    *) exit 2 ;;
esac
