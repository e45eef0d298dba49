# shellcheck shell=bash
# TCP connections that C programs attach one by one.

# The sections in which checkers of memory find faults of the library only.
sockets_c_checked=(calls waiting ending leaving sharing peers)

# The library, what its peers run with, and the program.
build_sockets_c() {
    build cargo build --release --quiet -p rstream-c -p rstream-preload -p rstream-run
    make_programs gcc CC=gcc sockets_c
}

# sockets_c_with FOLDER COMMAND...: with the library of that folder.
sockets_c_with() {
    TEST_RSTREAM_RUN=$provider/rstream-run with_libraries "$@"
}

# Each function and its misuse, each kind of peer.
sockets_c() {
    build_sockets_c
    sockets_c_with "$provider" "$programs/gcc/sockets_c" -j 4
}

sockets_c_valgrind() {
    build_sockets_c
    sockets_c_with "$provider" under_valgrind "$programs/gcc/sockets_c" -j 2 "${sockets_c_checked[@]}"
}

# What the example says.
sockets_c_example() {
    local prefix=$programs/sockets-prefix
    build_sockets_c
    build_examples "$prefix" rstream-c librstream_c.so rstream_sockets
    diff <("$prefix/both_sides") - <<'END'
client: not yet
client: shared memory
server: back on TCP
END
}
