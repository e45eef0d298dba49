# The C face of rdma-verbs: its tests, and its examples as a user builds them.

easy_examples=$PWD/crates/rdma-easy/examples/c

# with_easy FOLDER COMMAND...: where the library of that folder is found.
with_easy() {
    LD_LIBRARY_PATH=$1 "${@:2}"
}

easy_gcc() {
    with_easy "$provider" "$programs/gcc/easy" -j 4
}

# On a kind of RDMA devices, in the virtual machine.
easy_on() {
    on_device "$1" env TEST_EASY="$1" LD_LIBRARY_PATH="$provider" "$programs/gcc/easy" -j 2
}

easy_siw() {
    easy_on siw
}

easy_rxe() {
    easy_on rxe
}

easy_valgrind() {
    with_easy "$provider" under_valgrind "$programs/gcc/easy" -j 2
}

# easy_build_examples FOLDER: installs the library there, as its README says, and builds each example with what
# pkg-config tells.
easy_build_examples() {
    local prefix=$1 example flags
    rm -rf "$prefix"
    install -D -m 755 "$provider/librdma_easy.so" -t "$prefix/lib"
    install -D -m 644 crates/rdma-easy/include/rdma_easy.h -t "$prefix/include"
    install -D -m 644 "$provider/rdma_easy.pc" -t "$prefix/lib/pkgconfig"
    read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig \
        pkg-config --define-variable=prefix="$prefix" --cflags --libs rdma_easy)
    for example in "$easy_examples"/*.c; do
        cc -std=c11 -Wall -Wextra -Werror -o "$prefix/$(basename "$example" .c)" "$example" \
            "${flags[@]}" -Wl,-rpath,"$prefix/lib"
    done
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
    easy_build_examples "$prefix"
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
