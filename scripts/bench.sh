#!/usr/bin/env bash
# Measures everything that docs/performance.md reports, and writes its results and pictures: rstream-perf over all
# candidates, programs of others over libfabric's tcp provider and ours, and the set-up of thousands of connections.
#
#   [FABTESTS_BIN=FOLDER[:FOLDER]...] scripts/bench.sh [--quick] [--vm]
#
#   FABTESTS_BIN   where programs of fabtests are, of each libfabric to measure with (default: where PATH finds them)
#   --quick   a few seconds instead of minutes: that it works, not what is true
#   --vm      kernel RDMA in the virtual machine as well, which takes some minutes more
#
# A quiet machine, please: the load at the start is written beside the results.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cargo.sh

rounds=5 seconds=0.5 curve_rounds=3 curve_seconds=0.2 sizes=64..1M trips=20000 connections=9000 vm=''
for argument in "$@"; do
    case $argument in
        --quick) rounds=1 seconds=0.05 curve_rounds=1 curve_seconds=0.02 sizes=64,4k,64k trips=200 connections=200 ;;
        --vm) vm=yes ;;
        *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
done

# Sides that poll have a processor each; where sleepers wake is the scheduler's choice.
apart=(--processors "0,1")
# The best rings found. The defaults are the candidates without a size.
best=512K
document=docs/performance.md
pictures=docs/performance
results=target/bench
program=target/release/rstream-perf

say() {
    printf '== %s\n' "$*" >&2
}

# ---- measuring ------------------------------------------------------------------------------

# perf NAME OPTION...: a run, kept as $results/NAME.json
perf() {
    local name=$1
    shift
    say "$name"
    "$program" --json "$results/$name.json" "$@" >"$results/$name.txt"
}

# Message endpoints beside those of libfabric's tcp provider, through the same calls.
message_endpoints() {
    local over=("${apart[@]}" -r "$rounds" -d "$seconds" -o "rstream-msg,tcp-msg")
    perf messages-pingpong "${over[@]}" -t pingpong -s "$(IFS=,; echo "${message_sizes[*]}")"
    perf messages-bandwidth "${over[@]}" -t bandwidth -s 1M
    perf messages-others "${over[@]}" -t rate,write,read,connections,spread -n 8
}
message_sizes=(64 1024 4096 65536)

# What programs of others measure, the two providers in turns: fi_pingpong, and the reliable datagrams of ofi_rxm
# where fabtests are installed.
others() {
    local round provider name column call
    say "programs of others"
    rm -f "$results"/other-*
    for ((round = 1; round <= rounds; round++)); do
        for provider in rstream tcp; do
            while IFS='|' read -r name _ column call; do
                # shellcheck disable=SC2086 # The call is several words.
                other "$name-$provider" "$column" ${call//PROVIDER/$provider} </dev/null
            done < <(calls_of_others)
        done
    done
}

# calls_of_others: NAME|TITLE|COLUMN|CALL of each measurement. The figure is in this column of what the program prints
# at last, counted back from the last one, which is 0. PROVIDER stands for the provider.
calls_of_others() {
    local size folder
    for size in "${message_sizes[@]}"; do
        echo "pingpong-$size|\`fi_pingpong -e msg\`, $size B, µs one way|1|fi_pingpong -p PROVIDER -e msg -I $trips -S $size"
    done
    for folder in "${fabtests[@]}"; do
        calls_of_fabtests "$folder" "$(PATH=$folder:$PATH fi_info --version | sed -n 's/^libfabric: //p')"
    done
}

# calls_of_fabtests FOLDER LIBFABRIC: as calls_of_others.
calls_of_fabtests() {
    local size direction rdm='over `ofi_rxm`' few=$((trips / 10))
    local long="-I $few -S 1048576"
    call_of_fabtests "$@" bandwidth '`fi_msg_bw`' '1 MiB, MB/s' 2 "fi_msg_bw -p PROVIDER $long"
    for direction in write read; do
        call_of_fabtests "$@" "$direction" "\`fi_rma_bw -e msg -o $direction\`" '1 MiB, MB/s' 2 \
            "fi_rma_bw -e msg -o $direction -p PROVIDER $long"
    done
    for size in 64 4096 65536 131072 524288 1048576; do
        call_of_fabtests "$@" "rxm-pingpong-$size" "\`fi_rdm_tagged_pingpong\` $rdm" "$size B, µs one way" 1 \
            "fi_rdm_tagged_pingpong -p PROVIDER;ofi_rxm -I $((size > 65536 ? few : trips)) -S $size"
    done
    call_of_fabtests "$@" rxm-bandwidth "\`fi_rdm_tagged_bw\` $rdm" '1 MiB, MB/s' 2 \
        "fi_rdm_tagged_bw -p PROVIDER;ofi_rxm $long"
    call_of_fabtests "$@" rxm-rate "\`fi_rdm_tagged_bw\` $rdm" '64 B, million messages/s' 0 \
        "fi_rdm_tagged_bw -p PROVIDER;ofi_rxm -I $trips -S 64"
}

# call_of_fabtests FOLDER LIBFABRIC NAME PROGRAM FIGURE COLUMN CALL: as calls_of_others.
call_of_fabtests() {
    echo "$2-$3|$4, libfabric $2, $5|$6|$1/$7"
}
IFS=: read -ra fabtests <<<"${FABTESTS_BIN:-$(dirname "$(command -v fi_rdm_tagged_pingpong || true)")}"
[[ -x ${fabtests[0]}/fi_rdm_tagged_pingpong ]] || fabtests=()

# other NAME COLUMN PROGRAM OPTION...: adds to $results/other-NAME what a server and its client print at last, in this
# column before the last one. The server may need a moment until it listens.
other() {
    local name=$1 column=$2 source=() server attempt output
    shift 2
    # fi_pingpong listens on every address; fabtests need one.
    [[ $1 == fi_pingpong ]] || source=(-s 127.0.0.1)
    FI_PROVIDER_PATH=$PWD/target/release taskset -c 0 "$@" "${source[@]}" >/dev/null &
    server=$!
    for ((attempt = 0; attempt < 50; attempt++)); do
        if output=$(FI_PROVIDER_PATH=$PWD/target/release taskset -c 1 "$@" 127.0.0.1 2>/dev/null); then
            wait "$server"
            awk -v column="$column" 'END { print $(NF - column) }' <<<"$output" >>"$results/other-$name"
            return
        fi
        sleep 0.1
    done
    kill "$server"
    echo "bench: $1 does not answer" >&2
    return 1
}

setup_of_many() {
    say "many connections"
    FI_PROVIDER_PATH=$PWD/target/release FI_PROVIDER=rstream target/c/cc/scale setup -n "$connections" -r "$rounds" -b 40000 \
        >"$results/setup.txt"
}

in_vm() {
    say "the virtual machine"
    scripts/rdma-ratio.sh "$rounds" >"$results/rdma.md"
}

# ---- writing --------------------------------------------------------------------------------

# median RUN TEST SIZE CANDIDATE METRIC
median() {
    jq -r --arg test "$2" --argjson size "$3" --arg over "$4" --arg metric "$5" \
        '.results[] | select(.test == $test and .size == $size and .over == $over) | .metrics[$metric].median' "$results/$1.json"
}

quotient() {
    awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'
}

# line SCENARIO RUN TEST SIZE METRIC CANDIDATE AGAINST AIM: a line of the table of ratios. CANDIDATE has a defaults' and a
# best row.
line() {
    local other default
    other=$(median "$2" "$3" "$4" "$7" "$5")
    default=$(quotient "$(median "$2" "$3" "$4" "$6" "$5")" "$other")
    echo "| $1 | \`$6\` | \`$7\` | $default | $(quotient "$(median "$2" "$3" "$4" "$6:$best" "$5")" "$other") | $8 |"
}

# message_line SCENARIO RUN TEST SIZE METRIC AIM: the same of message endpoints, which have no rings.
message_line() {
    local ours theirs
    ours=$(median "$2" "$3" "$4" rstream-msg "$5")
    theirs=$(median "$2" "$3" "$4" tcp-msg "$5")
    echo "| $1 | \`rstream-msg\` | \`tcp-msg\` | $(quotient "$ours" "$theirs") | | $6 |"
}

ratios() {
    local size throughput=megabytes_per_second messages=messages_per_second latency=median_us
    echo "| scenario | rstream | against | defaults | $best rings | to reach |"
    echo "|---|---|---|---|---|---|"
    line "64 KiB one way, polling" polling bandwidth 65536 $throughput rstream tcp "≥ 8"
    line "" polling bandwidth 65536 $throughput rstream "ring:$best" "≥ 0.9"
    line "" polling bandwidth 65536 $throughput rstream-iwarp tcp "≥ 0.95"
    line "64 B there and back, polling" polling pingpong 64 $latency rstream tcp "≤ 0.125"
    line "" polling pingpong 64 $latency rstream line "≤ 2"
    line "" polling pingpong 64 $latency rstream-iwarp tcp "≤ 1.10"
    line "64 B there and back, sleeping" sleeping pingpong 64 $latency rstream tcp "≤ 0.8"
    line "64 B one way, a call each" polling rate 64 $messages rstream tcp "≥ 10"
    for size in "${message_sizes[@]}"; do
        message_line "message of $size B there and back" messages-pingpong pingpong "$size" $latency "≤ 1.0"
    done
    message_line "messages of 64 B one way" messages-others rate 64 $messages "≥ 1.2"
    message_line "messages of 1 MiB one way" messages-bandwidth bandwidth 1048576 $throughput "≥ 1.0"
    message_line "8 connections on one queue, there and back" messages-others connections 64 $messages "≥ 1.2"
    message_line "8 connections on one queue, one way" messages-others spread 64 $messages "≥ 1.2"
}

# one RUN TEST METRIC...: its whole table, without the column of sizes
one() {
    jq -r --arg test "$2" '
        def fixed: (. * 100 | round) as $n | "\($n / 100 | floor).\($n % 100 + 100 | tostring | .[1:])";
        def shown: if . >= 100 then round else fixed end;
        def unit: {megabytes_per_second: "MB/s", messages_per_second: "messages, 1000/s", median_us: "median, µs",
            percentile_99_us: "99 %, µs", percentile_99_9_us: "99.9 %, µs"}[.];
        def scale: if . == "messages_per_second" then 1000 else 1 end;
        $ARGS.positional as $names
        | .settings as $settings
        | [.results[] | select(.test == $test)]
        | (map(.size) | unique) as $sizes
        | "**\($test)**, \($sizes | join(", ")) B, \($settings.waiting)\n",
          "| | \($names | map(unit) | join(" | ")) | / \($settings.against) |",
          "|---|\($names | map("---|") | join(""))---|",
          (.[] | . as $row
            | ($names | map(scale as $scale | $row.metrics[.]
                | [.median, .least, .most | . / $scale | shown] | "\(.[0]) (\(.[1]), \(.[2]))")) as $cells
            | (if ($sizes | length) > 1 then ", \(.size) B" else "" end) as $size
            | "| `\(.over)`\($size) | \($cells | join(" | ")) | \(.ratio | fixed) |"),
          ""' --args "${@:3}" <"$results/$1.json"
}

# of_setup: the lines of scale, as a table
of_setup() {
    echo "| $connections connections | plain TCP | rstream | ratio | to reach |"
    echo "|---|---|---|---|---|"
    sed -E -e 's/^(.*) ([0-9.]+ \([^)]*\)) (.*); rstream ([0-9.]+ \([^)]*\)) .*; ratio (.*)$/| \1, \3 | \2 | \4 | \5 | |/' \
        -e 's/, us a/, µs a/' -e '/^. (opened|busy)/s/ \|$/ ≤ 2 |/' -e '/^. resident/s/ \|$/ ≤ 96 KiB |/' "$results/setup.txt"
}

# of_others: a line for each program and size
of_others() {
    local name title
    echo "| programs of others | \`rstream\` | \`tcp\` | ratio |"
    echo "|---|---|---|---|"
    while IFS='|' read -r name title _; do
        of_other "$title" "$name"
    done < <(calls_of_others)
    ((${#fabtests[@]} > 0)) || printf '\nPrograms of fabtests were not measured: none are installed.\n'
}

# of_other TITLE NAME
of_other() {
    local ours theirs
    ours=$(middle <"$results/other-$2-rstream")
    theirs=$(middle <"$results/other-$2-tcp")
    echo "| $1 | $ours | $theirs | $(quotient "$ours" "$theirs") |"
}

middle() {
    sort -g | awk '{ values[NR] = $1 } END { printf "%.2f", values[int((NR + 1) / 2)] }'
}

report() {
    jq -r --arg control "$(</proc/sys/net/ipv4/tcp_congestion_control)" \
        '"\(.machine.processors) × \(.machine.model), Linux \(.machine.kernel), libfabric \(.machine.libfabric), " +
        "load \(.machine.load) at the start, \($control) as TCP'"'"'s default;\nrounds of \(.settings.seconds) s in turns (\(.settings.rounds)): medians."' \
        "$results/polling.json"
    printf '\nRatios to the candidate under "against":\n\n'
    ratios
    printf '\n![Throughput over message size](performance/bandwidth.svg)\n\n![Latency over message size](performance/pingpong.svg)\n\n'
    printf 'All results: median (least, most).\n\n'
    one polling bandwidth megabytes_per_second
    one polling bidirectional megabytes_per_second
    one polling pingpong median_us percentile_99_us percentile_99_9_us
    one polling rate messages_per_second
    one sleeping bandwidth megabytes_per_second
    one sleeping pingpong median_us percentile_99_us percentile_99_9_us
    one messages-pingpong pingpong median_us percentile_99_us percentile_99_9_us
    one messages-bandwidth bandwidth megabytes_per_second
    one messages-others rate messages_per_second
    one messages-others write megabytes_per_second
    one messages-others read megabytes_per_second
    of_others
    echo
    of_setup
    if [[ -n $vm ]]; then
        printf '\nKernel RDMA in the virtual machine ([how](performance-rdma.md)):\n\n'
        cat "$results/rdma.md"
    fi
}

# Writes the report between the two marks of the document and leaves the rest unchanged.
write() {
    local from='<!-- results: scripts/bench.sh writes from here' to='<!-- results: to here -->'
    grep -qF "$from" "$document" && grep -qF "$to" "$document"
    report >"$results/report.md"
    awk -v from="$from" -v to="$to" -v report="$results/report.md" '
        index($0, to) { inside = 0 }
        !inside { print }
        index($0, from) { inside = 1; print ""; while ((getline line < report) > 0) print line; print "" }
    ' "$document" >"$results/document.md"
    cp "$results/document.md" "$document"
}

# ---- all of it ------------------------------------------------------------------------------

mkdir -p "$results"
unset FI_PROVIDER FI_PROVIDER_PATH
cargo build --release --quiet
make -s -C ffi-tests

ours=rstream,rstream:$best,rstream-iwarp,rstream-iwarp:$best
perf polling "${apart[@]}" -r "$rounds" -d "$seconds" -t bandwidth,bidirectional,pingpong,rate -o "$ours,tcp,unix,ring:$best,ring:32K,line"
perf sleeping -r "$rounds" -d "$seconds" -t bandwidth,pingpong -o "$ours,tcp,unix" --sleep
perf curves "${apart[@]}" -r "$curve_rounds" -d "$curve_seconds" -t bandwidth,pingpong -s "$sizes" --svg "$pictures" \
    -o "rstream:$best,rstream-iwarp:$best,tcp,unix,ring:$best"
message_endpoints
others
setup_of_many
[[ -z $vm ]] || in_vm
write
say "$document is written, in $((SECONDS / 60)) min $((SECONDS % 60)) s"
