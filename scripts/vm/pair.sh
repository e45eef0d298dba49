# A server and its client, for what runs inside the virtual machine.

# listening PROCESS: whether it listens on an RDMA device or a TCP port.
listening() {
    rdma resource show cm_id | grep -q "state LISTEN .*pid $1 " || ss -Hltnp | grep -q "pid=$1,"
}

# start_server COMMAND: sets $server, when it listens.
start_server() {
    bash -c "exec $1" &
    server=$!
    until listening "$server"; do
        kill -0 "$server" 2>/dev/null || { echo "the server ended early"; return 1; }
        sleep 0.1
    done
}

# pair SERVER CLIENT: two programs, the client from when the server listens; both must end well.
pair() {
    local server status=0
    start_server "$1" || return
    bash -c "exec $2" || { status=$?; echo "the client ended with $status"; kill "$server"; }
    wait "$server" || { status=$?; echo "the server ended with $status"; }
    return "$status"
}
