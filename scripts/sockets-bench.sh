#!/usr/bin/env bash
# Measures programs of others over TCP, Unix sockets and upgraded connections, in turns, and writes
# docs/sockets-measured.md's tables to standard output: the medians of all rounds, their ratio to TCP, and the ratio of
# the processor time that the whole machine used for as much work. A second table is of what is not upgraded: plain, and
# with rstream-run.
#
#   scripts/sockets-bench.sh [ROUNDS [PICTURE]]
#
# PICTURE: only draws redis's requests over the size of a value into this SVG file, for which gnuplot is needed. A quiet
# machine, please.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cargo.sh

rounds=${1:-5} columns='tcp unix rstream'
release=$PWD/target/release
folder=$(mktemp -d)
chmod 755 "$folder"
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT

cargo build --release --quiet -p rstream-preload -p rstream-run -p rstream-perf
gcc -O2 -std=c11 -D_GNU_SOURCE -o "$folder/pingpong" ffi-tests/sockets/pingpong.c
head -c 1024 /dev/urandom >"$folder/file"
echo '* any * * shm spin=0' >"$folder/asleep"
cat >"$folder/nginx" <<END
daemon off; worker_processes 1; pid $folder/pid; error_log $folder/errors;
events { worker_connections 256; }
http { access_log off; sendfile on; keepalive_requests 10000000; client_body_temp_path $folder/b;
       proxy_temp_path $folder/p; fastcgi_temp_path $folder/f; uwsgi_temp_path $folder/u; scgi_temp_path $folder/s;
       server { listen 127.0.0.1:7703; root $folder; } }
END

# over PATH COMMAND...: the command as it is, or with its connections upgraded. It takes this shell's place.
over() {
    case $1 in
        rstream) exec "$release/rstream-run" "${@:2}" ;;
        *) exec "${@:2}" ;;
    esac
}

# during PATH SERVER... -- FUNCTION ARGUMENT...: while the server runs.
during() {
    local path=$1 server=() process
    shift
    while [[ $1 != -- ]]; do
        server+=("$1")
        shift
    done
    shift
    (over "$path" "${server[@]}") >"$folder/log" 2>&1 &
    process=$!
    started=("$process")
    sleep 0.5
    "$@"
    kill "$process" 2>/dev/null || true
    wait "$process" 2>/dev/null || true
    started=()
}

redis_clients() {
    local place=(-p 7701)
    [[ $1 != unix ]] || place=(-s "$folder/redis")
    (over "$1" redis-benchmark "${place[@]}" --csv -t get "${@:2}" 2>/dev/null) | awk -F'"' '/GET/ { print $4 }'
}

redis() {
    during "$1" redis-server --port 7701 --unixsocket "$folder/redis" --save '' -- redis_clients "$@"
}

sized_clients() {
    local place=(-p 7701)
    [[ $1 != unix ]] || place=(-s "$folder/redis")
    redis-benchmark "${place[@]}" -q -t set -d "$2" -n 100 >/dev/null
    redis_clients "$1" -c 50 -n 100000
}

# redis_beside PATH SIDE: one side goes over the path, the other is plain.
redis_beside() {
    local asking=$1 serving=tcp
    [[ $2 == client ]] || { asking=tcp serving=$1; }
    during "$serving" redis-server --port 7701 --save '' -- redis_clients "$asking" -c 1 -n 60000
}

local_clients() {
    (over "$1" redis-benchmark -s "$folder/redis" --csv -t get -c 1 -n 100000 2>/dev/null) | awk -F'"' '/GET/ { print $4 }'
}

# redis_local PATH: by a Unix socket, whatever the path.
redis_local() {
    during "$1" redis-server --port 0 --unixsocket "$folder/redis" --save '' -- local_clients "$1"
}

# redis_sized PATH SIZE
redis_sized() {
    during "$1" redis-server --port 7701 --unixsocket "$folder/redis" --save '' -- sized_clients "$@"
}

web_clients() {
    (over "$1" wrk -t1 -c"$2" -d2 http://127.0.0.1:7703/file) | awk '/Requests\/sec/ { print $2 }'
}

web() {
    during "$1" nginx -p "$folder" -c "$folder/nginx" -- web_clients "$@"
}

new_connections() {
    (over "$1" ab -q -c 1 -n 4000 http://127.0.0.1:7703/file) | awk '/^Requests per/ { print $4 }'
}

fresh() {
    during "$1" nginx -p "$folder" -c "$folder/nginx" -- new_connections "$1"
}

flood_client() {
    (over "$1" iperf3 -c 127.0.0.1 -p 7702 -t 2 -J) | jq '.end.sum_received.bits_per_second / 8e6'
}

flood() {
    during "$1" iperf3 -s -p 7702 -- flood_client "$1"
}

# The server of a database, which refuses to be root: whoever it runs as, with its own copy of the library.
database_server() {
    local as=()
    if ((EUID == 0)); then
        as=(setpriv --clear-groups --reuid nobody --regid nogroup)
    fi
    cd "$folder/database"
    if [[ ! -d data ]]; then
        cp "$release/rstream-run" "$release/librstream_preload.so" .
        "${as[@]}" "$binaries/initdb" -A trust -U tester -D data
    fi
    release=.
    over "$1" "${as[@]}" "$binaries/postgres" -D data -k "$folder/database" -c listen_addresses=127.0.0.1 -p 7704
}

# database PATH CLIENTS
database() {
    local host=127.0.0.1 process
    [[ $1 != unix ]] || host=$folder/database
    (database_server "$1") >"$folder/log" 2>&1 &
    process=$!
    started=("$process")
    until "$binaries/pg_isready" -q -h 127.0.0.1 -p 7704; do sleep 0.05; done
    [[ -e $folder/filled ]] || pgbench -q -i -h 127.0.0.1 -p 7704 -U tester postgres &>"$folder/filled"
    (over "$1" pgbench -n -S -M prepared -c "$2" -T 2 -h "$host" -p 7704 -U tester postgres 2>/dev/null) |
        awk '/^tps/ { print $3 }'
    kill "$process"
    wait "$process" 2>/dev/null || true
    started=()
}

pingpong() {
    (over "$1" "$folder/pingpong" "${@:2}")
}

# Both sides sleep at once, instead of looking first.
pingpong_asleep() {
    RSTREAM_SOCKETS_CONF=$folder/asleep pingpong "$1" 64 30000 block
}

# bulk PATH: 64 KiB one way, both sides spinning; as "tcp", a bare ring with the window of an upgraded connection.
bulk() {
    if [[ $1 == rstream ]]; then
        pingpong rstream 65536 200000 flow
    else
        "$release/rstream-perf" -o ring:512K -t bandwidth -s 64k -r 1 --json "$folder/ring.json" &>/dev/null
        jq '.results[0].metrics.megabytes_per_second.median' "$folder/ring.json"
    fi
}

median() {
    sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'
}

# Hundredths of a second that the processors have worked.
busy() {
    awk '/^cpu / { print $2 + $3 + $4 + $6 + $7 + $8 }' /proc/stat
}

# row WORK TITLE PATHS FUNCTION ARGUMENT...: the paths in turns. Each does so much "work", or what it can in the same
# "time".
row() {
    local work=$1 title=$2 paths=$3 round path before result
    shift 3
    for ((round = 0; round < rounds; round++)); do
        for path in $paths; do
            before=$(busy)
            result=$("$1" "$path" "${@:2}")
            echo "$result" >>"$folder/$path.row"
            awk -v used=$(($(busy) - before)) -v result="$result" -v work="$work" \
                'BEGIN { print work == "time" ? used / result : used }' >>"$folder/$path.used"
        done
    done
    printf '| %s |' "$title"
    for path in $columns; do
        if [[ -e $folder/$path.row ]]; then
            printf ' %.5g |' "$(median <"$folder/$path.row")"
        else
            printf ' |'
        fi
    done
    for result in row used; do
        awk -v ours="$(median <"$folder/rstream.$result")" -v theirs="$(median <"$folder/tcp.$result")" \
            'BEGIN { printf " %.2f |", ours / theirs }'
    done
    echo
    rm -f "$folder"/*.{row,used}
}

# picture FILE
picture() {
    local size path round
    for ((size = 16; size <= 65536; size *= 4)); do
        for path in tcp unix rstream; do
            for ((round = 0; round < rounds; round++)); do
                redis_sized "$path" "$size" >>"$folder/$path.$size"
            done
            echo "$size $(median <"$folder/$path.$size")" >>"$folder/$path.curve"
        done
    done
    gnuplot <<END
set terminal svg size 800,450 background "white" font "sans-serif,13"
set output "$1"
set title "redis GET, 50 clients: requests a second over the size of the value (bytes)"
set logscale x 4
set logscale y 10
set xrange [12:90000]
set yrange [10000:*]
set grid
set key left bottom
plot "$folder/tcp.curve" with linespoints title "TCP", "$folder/unix.curve" with linespoints title "Unix socket", \\
    "$folder/rstream.curve" with linespoints title "TCP under rstream-run"
END
    cat "$folder"/{tcp,unix,rstream}.curve >&2
}

if [[ ${2:-} ]]; then
    picture "$2"
    exit
fi

binaries=$(echo /usr/lib/postgresql/*/bin)
mkdir -m 777 "$folder/database"

echo "| | TCP | Unix socket | upgraded | upgraded / TCP | processor time |"
echo "|---|---|---|---|---|---|"
row work 'redis GET, 1 client, requests/s' 'tcp unix rstream' redis -c 1 -n 60000
row work 'redis GET, 8 clients' 'tcp unix rstream' redis -c 8 -n 200000
row work 'redis GET, 50 clients' 'tcp unix rstream' redis -c 50 -n 200000
row work 'redis GET, 50 clients, 16 requests in a row' 'tcp unix rstream' redis -c 50 -P 16 -n 1000000
row work 'redis GET, 500 clients' 'tcp unix rstream' redis -c 500 -n 200000
row time 'nginx, 1 KiB, keep-alive, 1 connection, requests/s' 'tcp rstream' web 1
row time 'nginx, 64 connections' 'tcp rstream' web 64
row work 'nginx, a connection for each request' 'tcp rstream' fresh
row time 'PostgreSQL, pgbench -S, 1 client, transactions/s' 'tcp unix rstream' database 1
row time 'PostgreSQL, pgbench -S, 8 clients' 'tcp unix rstream' database 8
row time 'iperf3, one way, MB/s' 'tcp rstream' flood
row work '64 B there and back, waiting, µs' 'tcp rstream' pingpong 64 30000 block
row work '64 B there and back, spinning, µs' 'tcp rstream' pingpong 64 100000 spin
row work '64 B there and back, both asleep, µs' 'tcp rstream' pingpong_asleep
row time '64 KiB one way, spinning, MB/s (in the place of TCP: a bare ring of 512 KiB)' 'tcp rstream' bulk
echo
echo "| | plain | with rstream-run | ratio | processor time |"
echo "|---|---|---|---|---|"
rounds=$((2 * rounds)) columns='tcp rstream'
row work 'redis GET, 1 client with rstream-run, a plain server, requests/s' 'tcp rstream' redis_beside client
row work 'redis GET, 1 plain client, a server with rstream-run' 'tcp rstream' redis_beside server
row work 'redis GET by a Unix socket, 1 client, both sides with rstream-run' 'tcp rstream' redis_local
