# Reads and writes of memory, and what is never freed, as valgrind sees them.

under_valgrind() {
    # One thread runs at a time: each in turn, whatever another does.
    with_provider valgrind -q --fair-sched=try --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite "$@"
}

# Both ends of a copy.
valgrind_copy() {
    local port='' receiver
    rm -f "$logs/valgrind-recv.log"
    under_valgrind "$programs/gcc/stream_copy" recv -q -p 0 -a 127.0.0.1 -o "$logs/valgrind.out" \
        >"$logs/valgrind-recv.log" 2>&1 &
    receiver=$!
    for _ in {1..400}; do
        port=$(sed -n 's/^listening on .* port \([0-9]*\)$/\1/p' "$logs/valgrind-recv.log" 2>/dev/null || true)
        [[ -n $port ]] && break
        sleep 0.05
    done
    head -c 3000001 "$provider/librstream_fi.so" |
        under_valgrind "$programs/gcc/stream_copy" send -q -p "${port:?the receiver did not start}" 127.0.0.1
    wait "$receiver" || { cat "$logs/valgrind-recv.log"; return 1; }
    cmp <(head -c 3000001 "$provider/librstream_fi.so") "$logs/valgrind.out"
}

# pingpong ARGUMENT...: both sides of libfabric's own program, which compare every byte.
pingpong() {
    local port=$((20000 + RANDOM % 10000)) server
    under_valgrind fi_pingpong -d lo -c -I 10 -B "$port" "$@" >"$logs/valgrind-pingpong.log" 2>&1 &
    server=$!
    until [[ -n $(ss -Hltn "sport = :$port") ]]; do
        kill -0 "$server" || { cat "$logs/valgrind-pingpong.log"; return 1; }
        sleep 0.1
    done
    under_valgrind fi_pingpong -d lo -c -I 10 -P "$port" "$@" 127.0.0.1
    wait "$server" || { cat "$logs/valgrind-pingpong.log"; return 1; }
    echo "1 passed, 0 failed"
}

# Message endpoints, and the reliable datagrams that ofi_rxm makes of them.
valgrind_messages() {
    pingpong -p rstream -e msg
    pingpong -p 'rstream;ofi_rxm' -e rdm
    under_valgrind "$programs/gcc/datagrams" 20
    # Receives in a context that all connections share.
    FI_OFI_RXM_USE_SRX=1 under_valgrind "$programs/gcc/datagrams" 20
}

# What loads libfabric at run time and unloads it, or ends in the middle of everything.
unloading() {
    local how
    scripts/stacks.sh
    for how in close leave; do
        under_valgrind "$programs/gcc/unload" "$how"
        echo "1 passed, 0 failed"
        with_libfabric2 under_valgrind "$programs/gcc/unload" "$how"
        echo "1 passed, 0 failed"
    done
}
