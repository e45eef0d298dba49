# rstream-perf, quickly: that it measures everything over everything, not how fast that is.

# measured NAME OPTION...: a short run; what it printed and its JSON are in the logs.
measured() {
    local name=$1
    shift
    env -u FI_PROVIDER -u FI_PROVIDER_PATH "$provider/rstream-perf" "$@" -r 1 -d 0.02 --json "$logs/perf-$name.json" >"$logs/perf-$name.txt"
    cat "$logs/perf-$name.txt"
    # No metric is missing or 0, in what machines read and in what people read.
    jq -e '.results | all(.metrics != {} and all(.metrics | to_entries[];
        (.value.median > 0 or .key == "empty_wake_ups_per_transfer") and .value.rounds == [.value.median]))' "$logs/perf-$name.json"
    jq -r '.results[] | "\(.test) \(.over)"' "$logs/perf-$name.json" >"$logs/perf-$name.rows"
    (($(grep -cE '^ +[0-9]+K? +[a-z]' "$logs/perf-$name.txt") == $(wc -l <"$logs/perf-$name.rows")))
}

# rows NAME TEST CANDIDATE...: the run has exactly these of the test.
rows() {
    diff <(printf '%s\n' "${@:3}") <(sed -n "s/^$2 //p" "$logs/perf-$1.rows")
}

perf_everything() {
    local streams=(rstream rstream-iwarp rstream:256K:512 tcp unix) test
    measured polling -n 20 -t bandwidth,bidirectional,pingpong,rate,connections,verify \
        -o rstream,rstream-iwarp,rstream:256k:512,tcp,unix,ring,line
    for test in bandwidth bidirectional rate verify; do
        rows polling $test "${streams[@]}" ring
    done
    rows polling pingpong "${streams[@]}" ring line
    rows polling connections "${streams[@]}"
    measured sleeping --sleep -n 20 -t bandwidth,bidirectional,pingpong,connections,verify -o rstream,tcp,unix,ring
    for test in bandwidth bidirectional pingpong connections verify; do
        rows sleeping $test rstream tcp unix
    done
    measured threads --threads --sleep -o rstream,rstream-iwarp,tcp,unix,ring
    rows threads bidirectional rstream rstream-iwarp tcp unix
}

# Message endpoints of both providers, in one run; a stream has no part in remote memory access.
perf_messages() {
    local tests=(bandwidth pingpong rate write read register connections spread verify) test status=0
    measured messages -n 20 -t "$(IFS=,; echo "${tests[*]}")" -o rstream-msg,tcp-msg
    measured messages-sleeping --sleep -n 20 -t "$(IFS=,; echo "${tests[*]}")" -o rstream-msg,tcp-msg
    for test in "${tests[@]}"; do
        rows messages "$test" rstream-msg tcp-msg
        rows messages-sleeping "$test" rstream-msg tcp-msg
    done
    "$provider/rstream-perf" -t write,bidirectional -o tcp-msg,tcp -r 1 -d 0.02 -q >"$logs/perf-unsuited.txt"
    [[ $(grep -cE '^ +64K +tcp' "$logs/perf-unsuited.txt") == 2 ]]
    "$provider/rstream-perf" -t write -o tcp 2>"$logs/perf-unsuited.txt" || status=$?
    ((status == 1))
    grep -F 'tcp can do none of the tests: write' "$logs/perf-unsuited.txt"
}

perf_pictures() {
    local picture
    rm -rf "$logs/perf-pictures"
    measured curves -t bandwidth,pingpong -s 64,4k -o rstream,tcp --svg "$logs/perf-pictures"
    for picture in bandwidth pingpong; do
        python3 -c 'import sys, xml.etree.ElementTree as tree
texts = [text.text.strip() for text in tree.parse(sys.argv[1]).iter("{http://www.w3.org/2000/svg}text")]
assert {"rstream", "tcp", "64", "4K"} <= set(texts), texts' "$logs/perf-pictures/$picture.svg"
    done
}

# Two hosts, as far as one host can show it.
perf_server() {
    local port='' server status=0
    # It may be read before the server has opened it.
    : >"$logs/perf-server.err"
    env -u FI_PROVIDER -u FI_PROVIDER_PATH "$provider/rstream-perf" server -a 127.0.0.1 -p 0 2>"$logs/perf-server.err" &
    server=$!
    for _ in {1..200}; do
        port=$(sed -n 's/^listening on .*:\([0-9]*\)$/\1/p' "$logs/perf-server.err")
        [[ -n $port ]] && break
        sleep 0.05
    done
    measured client client 127.0.0.1 -p "${port:?the server did not start}" -t bandwidth,pingpong,verify || status=$?
    kill "$server"
    cat "$logs/perf-server.err"
    ((status == 0))
    rows client pingpong rstream tcp
}

# What could not be measured is told, and is a failure.
perf_fails() {
    local status=0
    FI_PROVIDER_PATH=$logs "$provider/rstream-perf" -q -r 1 -d 0.02 -t pingpong -o rstream,tcp >"$logs/perf-fails.txt" 2>&1 || status=$?
    cat "$logs/perf-fails.txt"
    ((status == 1))
    grep 'is librstream_fi.so in FI_PROVIDER_PATH' "$logs/perf-fails.txt"
    grep -E '^ +64 +rstream +failed$' "$logs/perf-fails.txt"
}

perf_checks() {
    local check
    for check in everything messages pictures server fails; do
        "perf_$check"
        echo "1 passed, 0 failed"
    done
}
