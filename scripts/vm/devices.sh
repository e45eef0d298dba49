# RDMA devices for guest.sh: for each kind a pair of virtual Ethernet devices with an RDMA device on
# each end, all in one network namespace.
#
#   siw0 on siw-0, 10.1.0.1 and fd01::1   <->   siw1 on siw-1, 10.1.0.2 and fd01::2
#   rxe0 on rxe-0, 10.2.0.1 and fd02::1   <->   rxe1 on rxe-1, 10.2.0.2 and fd02::2

declare -A network=([siw]=1 [rxe]=2)

# address FAMILY KIND END
address() {
    [[ $1 == 4 ]] && echo "10.${network[$2]}.0.$(($3 + 1))" || echo "fd0${network[$2]}::$(($3 + 1))"
}

# end FAMILY KIND END: one end of a pair, as lines for ip -batch. Linux would short-cut what an end sends
# to the other through the loopback device. Rules keep it on the wire: an address is local only to what
# comes in at its device, and to what it sends to itself.
end() {
    local device=$2-$3 table=${network[$2]}$3 here there
    here=$(address "$1" "$2" "$3") there=$(address "$1" "$2" $((1 - $3)))
    [[ $1 == 4 ]] && echo "address add $here/24 dev $device" || echo "address add $here/64 dev $device nodad"
    echo "rule add pref 1 iif $device to $here lookup local"
    echo "rule add pref 2 from $here to $here lookup local"
    echo "rule add pref 3 to $there lookup $table"
    up "$@"
}

# up FAMILY KIND END: the same for what is gone after the device was down.
up() {
    local device=$2-$3 table=${network[$2]}$3 here there
    here=$(address "$1" "$2" "$3") there=$(address "$1" "$2" $((1 - $3)))
    echo "link set $device up"
    echo "route replace $there dev $device src $here table $table"
}

# set_up_devices KIND...
set_up_devices() {
    local kind family conf
    modprobe -a ib_uverbs rdma_ucm veth "${@/rxe/rdma_rxe}" || return
    {
        echo "link set lo up"
        for kind; do
            echo "link add $kind-0 mtu 9000 type veth peer name $kind-1 mtu 9000"
        done
    } | ip -batch - || return
    for kind; do
        for conf in "/proc/sys/net/ipv4/conf/$kind"-[01]; do
            echo 1 >"$conf/accept_local"
            echo 1 >"$conf/arp_ignore"
            echo 2 >"$conf/arp_announce"
        done
        for conf in "/proc/sys/net/ipv6/conf/$kind"-[01]; do
            echo 1 >"$conf/keep_addr_on_down"
            echo 0 >"$conf/accept_dad"
        done
    done
    for family in 4 6; do
        {
            echo "rule add pref 4 lookup local"
            echo "rule del pref 0"
            for kind; do
                end "$family" "$kind" 0
                end "$family" "$kind" 1
            done
        } | ip "-$family" -batch - || return
    done
    for kind; do
        rdma link add "${kind}0" type "$kind" netdev "$kind-0" || return
        rdma link add "${kind}1" type "$kind" netdev "$kind-1" || return
    done
}
