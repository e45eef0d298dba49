# The C face of rdma-verbs: its tests, and its examples as a user builds them.

# Freed memory that the C library keeps for each thread would count as in use.
exact_heap=GLIBC_TUNABLES=glibc.malloc.tcache_count=0

easy_gcc() {
    with_libraries "$provider" env "$exact_heap" "$programs/gcc/easy" -j 4
}

# On a kind of RDMA devices, in the virtual machine.
easy_on() {
    on_device "$1" env "$exact_heap" TEST_EASY="$1" LD_LIBRARY_PATH="$provider" "$programs/gcc/easy" -j 2
}

easy_siw() {
    easy_on siw
}

easy_rxe() {
    easy_on rxe
}

easy_valgrind() {
    with_libraries "$provider" under_valgrind "$programs/gcc/easy" -j 2
}

# easy_pair PREFIX NAME HOST: runs both sides of an example; what they say is NAME.log beside them.
easy_pair() {
    local prefix=$1 name=$2 host=$3 port=$((20000 + RANDOM % 10000)) server client
    client=$name'_client' server=$name'_server'
    [[ $name != advertise ]] || client=advertise_writer server=advertise_owner
    timeout 60 "$prefix/$server" "$host" "$port" >"$prefix/$name.server" &
    # The server may not listen yet.
    for _ in {1..50}; do
        timeout 60 "$prefix/$client" "$host" "$port" >"$prefix/$name.client" && break
        sleep 0.1
    done
    wait %%
    sed 's/^/client: /' "$prefix/$name.client"
    sed 's/^/server: /' "$prefix/$name.server"
}

# What each example says.
easy_examples() {
    local prefix=$programs/easy-prefix
    build_examples "$prefix" rdma-easy librdma_easy.so rdma_easy
    "$prefix/devices" | tee /dev/stderr | tail -1 | grep -x iwarp
    echo "1 passed, 0 failed"
    diff <(easy_pair "$prefix" hello 127.0.0.1) - <<'END'
client: the reply says: come in
client: the answer says: hello, client
server: a request says: let me in
server: a message says: hello, server
server: the client has gone
END
    echo "1 passed, 0 failed"
    diff <(easy_pair "$prefix" advertise localhost) - <<'END'
client: the last byte is 3
server: the peer has written 1048576 bytes, their sum is 3145728
END
    echo "1 passed, 0 failed"
    diff <(easy_pair "$prefix" messages ::1) - <<'END'
client: the server says: welcome
client: 10 bytes are back
client: 1000000 bytes are back
client: 2 messages were sent
server: 10 bytes
server: 1000000 bytes
server: the client has gone
END
    echo "1 passed, 0 failed"
}
