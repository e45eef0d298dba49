# Many endpoints, their descriptors, and what they cost.

# scale NAME ARGUMENT...: one run of the program in ffi-tests/scale. A failure shows the seed. Without
# the allocator's caches of freed memory, which it counts as in use, what is on the heap can be compared.
scale() {
    local name=$1 status=0
    shift
    echo "$name: scale $*"
    GLIBC_TUNABLES=glibc.malloc.tcache_count=0 with_provider timeout 200 "$programs/gcc/scale" "$@" || status=$?
    case $status in
        0) echo "1 passed, 0 failed" ;;
        77) echo "skipped $name - see above"; echo "0 passed, 0 failed, 1 skipped" ;;
        *) echo "FAILED $name: status $status"; echo "0 passed, 1 failed" ;;
    esac
}

# Small rings and queues, so that senders wait often: a lost wake-up is a stall. Levels, edges,
# fi_trywait and polling; both directions at once, and a server that answers.
wakeups() {
    local how
    for how in sleep edge trywait poll; do
        scale "wakeups_$how" rounds -w "$how" -n 32 -a -b 15000 -k 64 -d 4
        [[ -z $long && $how != sleep ]] ||
            scale "echo_$how" rounds -w "$how" -n 32 -a -b 150000 -k 1000 -d 8 -e
    done
}

# Thousands of endpoints in one process: asleep, each with an event queue of its own, polled; a
# thousand that do nothing; and 10 000 opened and closed, or 100 000.
many() {
    local rounds=${long:+100}
    scale asleep rounds -n 9000 -b 1000
    [[ -z $long ]] || scale ten_thousand_asleep rounds -n 10000 -b 1000
    scale ten_thousand_polled rounds -n 10000 -b 1000 -w poll
    scale queue_each rounds -n 1500 -b 1000 -q
    scale idle rounds -n 1000 -b 1000 -i 9
    scale soak rounds -n 1000 -r "${rounds:-10}" -b 100
}

# Message endpoints of one process: a storm of requests, a thousand connections that live at the same time, or 5000;
# and one connection after the other, more than a thousand or 50 000.
messages() {
    local together=${long:+5000} in_turn=${long:+50000}
    scale messages_storm messages -n 200 -r 3
    scale messages_together messages -n "${together:-1000}"
    scale messages_in_turn turns -n "${in_turn:-1100}"
}

scale_checks() {
    wakeups
    many
    messages
}
