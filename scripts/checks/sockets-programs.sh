# shellcheck shell=bash
# Programs of others with the preload library: unmodified, on either side, and beside plain ones. A port each.

# The prefix of a command whose connections are upgraded early, if their peers have the library.
upgrading="env RSTREAM_SOCKETS_AFTER=2 $provider/rstream-run"

# upgrades COMMAND...: runs it so, and makes sure that one of its connections was upgraded.
upgrades() {
    local said status=0
    said=$(mktemp)
    $upgrading -v "$@" 2>"$said" || status=$?
    cat "$said" >&2
    grep -q ': shared memory$' "$said" || { echo "error: nothing was upgraded: $*" >&2; status=1; }
    rm "$said"
    return "$status"
}

# Servers and clients, at least one of which is not plain.
pairs=("$upgrading|upgrades" "$upgrading|" "|$upgrading")

# await_port PORT: until somebody listens there.
await_port() {
    local _
    for _ in {1..200}; do
        # Not by connecting: iperf3's server would take that for its client.
        [[ -z $(ss -Hltn "sport = :$1") ]] || return 0
        sleep 0.05
    done
    echo "error: nobody listens at port $1"
    return 1
}

# end PROCESS: of this shell.
end() {
    kill "$1"
    wait "$1" || true
}

# digest: what a redis server holds.
digest() {
    redis-cli -p "$1" debug digest
}

# redis_pair SERVER CLIENT: each is a command prefix. Prints what the server holds after the client has loaded
# it, while it saves.
redis_pair() {
    local port=$1 server=$2 client=$3 folder process
    folder=$(mktemp -d)
    (cd "$folder" && exec $server redis-server --port "$port" --save '' --enable-debug-command local) >"$folder/log" 2>&1 &
    process=$!
    until redis-cli -p "$port" ping &>/dev/null; do sleep 0.05; done
    $client redis-benchmark -p "$port" -q -r 1000 -n 20000 -c 20 -t set,lpush,sadd,get >&2
    redis-cli -p "$port" bgsave >&2
    seq 1 30000 | awk '{ print "SET key" $1 " " $1 * 7919 }' | $client redis-cli -p "$port" --pipe >&2
    redis-cli -p "$port" flushall >&2
    seq 1 30000 | awk '{ print "SET key" $1 " " $1 * 7919 }' | $client redis-cli -p "$port" --pipe >&2
    digest "$port"
    end "$process"
    rm -rf "$folder"
}

# Either side with the library, both, or none: the server holds the same.
redis_programs() {
    local plain both
    plain=$(redis_pair 7601 '' '')
    for both in "${pairs[@]}"; do
        [[ $(redis_pair 7602 "${both%|*}" "${both#*|}") == "$plain" ]] || { echo "error: redis, $both"; return 1; }
    done
    echo "4 passed, 0 failed"
}

# A server and a client of two users, neither of which is root: their connections are upgraded.
users_programs() {
    local folder process said
    if ((EUID != 0)); then
        echo "skipped users_programs - only root has two users"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    local as=(setpriv --clear-groups --regid 12345 --reuid)
    folder=$(mktemp -d)
    chmod 777 "$folder"
    # The built files may be where other users do not look.
    cp "$provider/rstream-run" "$provider/librstream_preload.so" "$folder"
    (cd "$folder" && exec "${as[@]}" 12345 ./rstream-run -v redis-server --port 7605 --save '') >"$folder/log" 2>&1 &
    process=$!
    until redis-cli -p 7605 ping &>/dev/null; do sleep 0.05; done
    said=$(cd "$folder" && "${as[@]}" 12346 ./rstream-run -v redis-benchmark -p 7605 -q -n 20000 -c 4 -t set,get 2>&1)
    end "$process"
    echo "$said"
    grep -q 'to 127.0.0.1:7605: shared memory' <<<"$said"
    grep -q '127.0.0.1:7605 to .*: shared memory' "$folder/log"
    rm -rf "$folder"
    echo "1 passed, 0 failed"
}

# What rstream-stat shows of a server and its clients, and what rules and the environment make of them.
statistics_programs() {
    local folder server client stat=$provider/rstream-stat port=7606 bench
    folder=$(mktemp -d)
    bench=("$provider/rstream-run" redis-benchmark -p "$port" -q -c 3 -t get)
    "$provider/rstream-run" -s redis-server --port "$port" --save '' >"$folder/log" 2>"$folder/errors" &
    server=$!
    until redis-cli -p "$port" ping &>/dev/null; do sleep 0.05; done

    # While they run: each end knows the other, and a dialogue needs the smallest window.
    "${bench[@]}" -n 100000000 >/dev/null 2>&1 &
    client=$!
    until "$stat" "$client" 2>/dev/null | grep -q ' shm '; do sleep 0.05; done
    timeout 2.5 "$stat" -w -j "$server" "$client" >"$folder/lines" || true
    "$stat" "$server"
    end "$client"
    python3 scripts/checks/statistics.py open "$server" "$client" <"$folder/lines"

    # Afterwards: every byte of them was counted. A request has 36 bytes, its answer 5.
    "$stat" -j "$server" >"$folder/before"
    "${bench[@]}" -n 20000 >&2
    "$stat" -j "$server" | cat "$folder/before" - | python3 scripts/checks/statistics.py shared 720000 100000

    # Nothing is made where a rule or the environment forbids it, and a fault is named once.
    echo "redis-* connect * 127.0.0.0/8:$port tcp" >"$folder/tcp"
    printf '%s\n' '# comment' '* any * * shm spin=much' >"$folder/faulty"
    local forbidden
    for forbidden in RSTREAM_SOCKETS=off RSTREAM_SOCKETS_CONF="$folder/tcp" RSTREAM_SOCKETS_CONF="$folder/faulty"; do
        "$stat" -j "$server" >"$folder/before"
        env "$forbidden" "${bench[@]}" -n 20000 >/dev/null 2>"$folder/said" &
        client=$!
        sleep 0.2
        ! "$stat" "$client" || { echo "error: $forbidden: something is counted"; return 1; }
        wait "$client"
        "$stat" -j "$server" | cat "$folder/before" - | python3 scripts/checks/statistics.py plain 720000 100000
    done
    [[ $(grep -c "faulty:2: 'much' is no time" "$folder/said") == 1 ]]

    if ((EUID == 0)); then
        cp "$stat" "$folder" && chmod 755 "$folder"
        setpriv --clear-groups --reuid 12345 "$folder/rstream-stat" "$server" 2>"$folder/said" || true
        grep -q 'may not be read' "$folder/said"
    fi
    end "$server"
    "$stat" "$server" 2>"$folder/said" || true
    grep -q 'no such process' "$folder/said"
    grep -E 'rstream\[[0-9]+\]: [0-9]+ shared memory; by ring received [0-9]+ bytes' "$folder/errors"
    rm -rf "$folder"
    echo "3 passed, 0 failed"
}

# Sockets of virtual machines do not work everywhere.
python_suite() {
    preloaded 0 timeout 300 /usr/bin/python3.11 -m test -q -i '*VSOCK*' "$1"
}

# Python's own tests of everything that uses sockets. Some judge by the clock, and may fail once on a machine that has
# other work. The longest ones are left to --long.
python_suites() {
    local suite
    for suite in test_socket test_socketserver test_select test_selectors test_poll test_epoll test_ftplib \
        test_smtplib test_poplib test_httplib test_urllib2_localnet test_ssl \
        ${long:+test_asyncio test_multiprocessing_fork test_multiprocessing_spawn test_imaplib test_xmlrpc}; do
        python_suite "$suite" || python_suite "$suite" || { echo "error: $suite, twice"; return 1; }
        echo "1 passed, 0 failed"
    done
}

# Files over HTTP, by sendfile, proxied, and with half of the programs plain.
web_programs() {
    local folder both server client process proxy port files said
    folder=$(mktemp -d)
    chmod 755 "$folder"
    head -c 5000000 /dev/urandom >"$folder/file"
    cat >"$folder/conf" <<END
daemon off; worker_processes 2; pid $folder/pid; error_log $folder/errors;
events { worker_connections 256; }
http {
    access_log off; sendfile on; tcp_nopush on; client_body_temp_path $folder/b; proxy_temp_path $folder/p;
    fastcgi_temp_path $folder/f; uwsgi_temp_path $folder/u; scgi_temp_path $folder/s;
    upstream behind { server 127.0.0.1:7604; keepalive 4; }
    server { listen 127.0.0.1:7603; root $folder;
             location /behind/ { proxy_pass http://behind/; proxy_http_version 1.1; proxy_set_header Connection ''; } }
    server { listen 127.0.0.1:7604; root $folder; }
}
END
    cat >"$folder/proxy" <<END
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
listen before
    bind 127.0.0.1:7611
    http-reuse always
    server one 127.0.0.1:7604
END
    # Each twice: a connection is upgraded in a turn after the first.
    files=$(cat "$folder"/file{,,,,,} | sha256sum)
    for both in "${pairs[@]}"; do
        server=${both%|*} client=${both#*|}
        $server nginx -p "$folder" -c "$folder/conf" >"$folder/log" 2>&1 &
        process=$!
        $server haproxy -db -f "$folder/proxy" >"$folder/proxy-log" 2>&1 &
        proxy=$!
        await_port 7603
        await_port 7611
        [[ $($client curl -sf http://127.0.0.1:{7603,7603/behind,7611,7603,7603/behind,7611}/file -o - | sha256sum) \
            == "$files" ]] ||
            { echo "error: curl, $both"; return 1; }
        $client ab -q -k -c 8 -n 4000 http://127.0.0.1:7603/conf | grep -q '^Failed requests: *0$'
        for port in 7603 7611; do
            said=$($client wrk -t 1 -c 8 -d 1 "http://127.0.0.1:$port/conf")
            # A slow machine may be late.
            [[ $said == *requests\ in* && $said != *Non-2xx* && ! $said =~ (connect|read|write)\ [1-9] ]]
        done
        echo "4 passed, 0 failed"
        end "$process"
        end "$proxy"
    done
    rm -rf "$folder"
}

# The tests of memcached's protocols that libmemcached has.
memcached_programs() {
    local both process
    for both in "${pairs[@]}"; do
        ${both%|*} memcached -p 7607 -U 0 -l 127.0.0.1 -u nobody &
        process=$!
        await_port 7607
        ${both#*|} memccapable -h 127.0.0.1 -p 7607
        end "$process"
        echo "1 passed, 0 failed"
    done
}

# iperf PREFIX WAY: bytes flow in each direction that is asked for. A server that still ends the test before says that it
# is busy.
iperf() {
    local said _
    for _ in {1..5}; do
        said=$($1 iperf3 -c 127.0.0.1 -p 7612 -t 1 ${2:+"$2"} -J) || true
        jq -r '.error // empty' <<<"$said" | grep 'server is busy' || break
        sleep 0.2
    done
    jq -e '[.end | .sum_received, .sum_sent, .sum_received_bidir_reverse // empty | .bytes > 0] | all' <<<"$said" ||
        { echo "error: iperf3 $2: $said"; return 1; }
}

# Files by rsync's own protocol and through socat, and iperf3 in both directions.
copying_programs() {
    local folder both server client process proxy way
    folder=$(mktemp -d)
    chmod 755 "$folder"
    mkdir "$folder/tree"
    head -c 20000000 /dev/urandom >"$folder/tree/file"
    cp -r /usr/include/linux "$folder/tree"
    printf '%s\n' 'port = 7608' 'address = 127.0.0.1' 'use chroot = no' '[tree]' "path = $folder/tree" >"$folder/conf"
    # A daemon that changes its user after it has accepted a connection is no peer any more.
    ((EUID != 0)) || printf '%s\n' 'uid = root' 'gid = root' >>"$folder/conf"
    for both in "${pairs[@]}"; do
        server=${both%|*} client=${both#*|}
        $server rsync --daemon --no-detach --config "$folder/conf" &
        process=$!
        await_port 7608
        $client rsync -a rsync://127.0.0.1:7608/tree/ "$folder/fetched"
        diff -r "$folder/tree" "$folder/fetched"
        end "$process"

        $server socat -u TCP-LISTEN:7609,bind=127.0.0.1,reuseaddr CREATE:"$folder/copied" &
        process=$!
        $client socat TCP-LISTEN:7610,bind=127.0.0.1,reuseaddr TCP:127.0.0.1:7609,retry=50,interval=0.1 &
        proxy=$!
        $server socat -u OPEN:"$folder/tree/file" TCP:127.0.0.1:7610,retry=50,interval=0.1
        wait "$process" "$proxy"
        cmp "$folder/tree/file" "$folder/copied"

        $server iperf3 -s -B 127.0.0.1 -p 7612 >"$folder/log" &
        process=$!
        await_port 7612
        for way in '' -R --bidir; do
            iperf "$client" "$way"
        done
        end "$process"
        rm -rf "$folder"/{copied,fetched}
        echo "5 passed, 0 failed"
    done
    rm -rf "$folder"
}

# A PostgreSQL server, whose children serve a connection each. Transfers keep the sums of all tables equal.
database_programs() {
    local folder both as server=() client process sums binaries
    binaries=$(echo /usr/lib/postgresql/*/bin)
    folder=$(mktemp -d)
    as=()
    if ((EUID == 0)); then
        as=(setpriv --clear-groups --reuid nobody --regid nogroup)
        chown nobody:nogroup "$folder"
    fi
    # The built files may be where other users do not look.
    cp "$provider/rstream-run" "$provider/librstream_preload.so" "$folder"
    cd "$folder"
    "${as[@]}" "$binaries/initdb" -A trust -U tester -D data >log
    export PGHOST=127.0.0.1 PGPORT=7613 PGUSER=tester PGDATABASE=postgres
    for both in "${pairs[@]}"; do
        client=${both#*|}
        read -ra server <<<"${both%|*}"
        "${as[@]}" "${server[@]/"$provider"/.}" "$binaries/postgres" -D data -k "$folder" -c listen_addresses=127.0.0.1 -p 7613 \
            -c fsync=off >>log 2>&1 &
        process=$!
        until "$binaries/pg_isready" -q; do sleep 0.05; done
        $client pgbench -q -i -s 1
        $client pgbench -n -c 4 -t 200
        $client pgbench -n -c 4 -t 1000 -S -M prepared
        sums=$($client psql -Atc 'select (select sum(abalance) from pgbench_accounts) =
            (select sum(bbalance) from pgbench_branches), (select count(*) from pgbench_history)')
        [[ $sums == 't|800' ]]
        $client psql -Atc 'copy pgbench_accounts to stdout' | sha256sum >sum
        psql -Atc 'copy pgbench_accounts to stdout' | sha256sum | cmp - sum
        end "$process"
        echo "1 passed, 0 failed"
    done
    cd - >/dev/null
    rm -rf "$folder"
}

# carries BYTES COMMAND...: runs it as `upgrades` does, and makes sure that it received so many bytes by rings.
carries() {
    local said status=0
    said=$(mktemp)
    $upgrading -s "${@:2}" 2>"$said" || status=$?
    cat "$said" >&2
    awk -v least="$1" '{ for (i = 3; i < NF; i++) if ($(i - 2) == "ring" && $(i - 1) == "received") sum += $i }
        END { exit sum < least }' "$said" || { echo "error: few bytes by rings: ${*:2}" >&2; status=1; }
    rm "$said"
    return "$status"
}

# own_programs PORT BYTES COMMAND...: servers and clients that compare every byte: over TCP, both with the library, and
# each beside a plain one. The client receives so many bytes at least.
own_programs() {
    local port=$1 both server client process
    for both in '|' "${pairs[@]}"; do
        server=${both%|*} client=${both#*|}
        [[ $client != upgrades ]] || client="carries $2"
        $server "${@:3}" serve "$port" &
        process=$!
        await_port "$port"
        $client "${@:3}" ask "$port"
        end "$process"
        echo "1 passed, 0 failed"
    done
}

node_programs() {
    own_programs 7614 40000000 node ffi-tests/sockets/programs/sockets.js
}

java_programs() {
    javac -Xlint:all -Werror -d "$programs/sockets" ffi-tests/sockets/programs/Sockets.java
    # Without a compiler that goes on for long, and answers that wait for an acknowledgement.
    own_programs 7617 50000000 java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dsun.net.httpserver.nodelay=true \
        -cp "$programs/sockets" Sockets
}

# GLib's own tests of sockets, of proxies and of D-Bus over TCP, whose clients and servers are threads. Upgraded at
# once: those of sockets have only a few turns.
glib_programs() {
    local name
    for name in socket proxy-test gdbus-peer; do
        upgrades env RSTREAM_SOCKETS_AFTER=0 timeout 60 "/usr/libexec/installed-tests/glib/$name"
        echo "1 passed, 0 failed"
    done
}

sockets_programs() {
    # Servers of what has failed.
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    build_sockets
    redis_programs
    users_programs
    statistics_programs
    web_programs
    memcached_programs
    copying_programs
    database_programs
    node_programs
    java_programs
    glib_programs
    python_suites
}
