#!/usr/bin/env bash
# Inside the virtual machine: a stream beside rdma-core's own benchmarks on the same device, and message endpoints
# beside those of libfabric's verbs, in turns. Prints tables in Markdown. scripts/rdma-ratio.sh calls it.
#
#   scripts/vm/ratio.sh VERBS_BENCH KIND [ROUNDS]     (siw or rxe; 5 rounds unless given)
#
# Only the ratios mean anything: this is an emulation. Both sides poll, each on a processor of its own.
set -euo pipefail
source "$(dirname "$0")/devices.sh"

bench=$1 kind=$2 rounds=${3:-5}
server=$(address 4 "$kind" 1)
export TEST_IPV4=$server
trips=2000 blocks=600 limit=90
results=$(mktemp -d)

# note CANDIDATE: keeps the number that comes in, if one does.
note() {
    awk '$1 > 0 { print $1 }' >>"$results/$1"
}

# column NUMBER: that of the last line of figures
column() {
    awk -v at="$1" '/^ *[0-9]+ +[0-9]+ / { value = $at } END { print value }'
}

# perftest PROGRAM ARGUMENT...: what its client prints
perftest() {
    timeout $limit taskset -c 1 "$@" -R -F -d "${kind}1" >/dev/null 2>&1 &
    sleep 0.7
    timeout $limit taskset -c 0 "$@" -R -F -d "${kind}0" "$server" 2>/dev/null || true
    wait $! || true
}

# rsockets COLUMN ARGUMENT...: that of the line of rdma-core's own byte streams, of the same traffic. It
# runs on where it cannot work, so its time is short.
rsockets() {
    local at=$1
    shift
    timeout 20 taskset -c 1 rstream -b "$server" "$@" >/dev/null 2>&1 &
    sleep 0.7
    { timeout 20 taskset -c 0 rstream -s "$server" "$@" 2>/dev/null || true; } |
        awk -v at="$at" '$0 !~ /usec/ && NF >= 8 { print $at }'
    wait $! || true
}

stream() {
    timeout $limit "$bench" "$@" || true
}

# messages PROVIDER SIZE: microseconds one way over message endpoints
messages() {
    local command=(fi_pingpong -e msg -p "$1" -S "$2" -I $((trips / 4)))
    FI_PROVIDER=$1 timeout $limit taskset -c 1 "${command[@]}" -d "${kind}1" >/dev/null 2>&1 &
    sleep 0.7
    { FI_PROVIDER=$1 timeout $limit taskset -c 0 "${command[@]}" -d "${kind}0" "$server" 2>/dev/null || true; } |
        awk '$7 + 0 > 0 { print $7 }'
    wait $! || true
}

# table UNIT CANDIDATE...: medians of the rounds, with least and greatest, and the ratios of the medians to those of
# each of $bases
table() {
    local unit=$1 candidate
    shift
    echo
    { printf '%s | ' "| $kind, $unit | median (least, greatest) of rounds" "${bases[@]/#// }"; echo; } | sed 's/ $//'
    printf -- '|---%.0s' 1 2 "${bases[@]}"
    echo '|'
    for candidate; do
        figures "$candidate"
    done
}

# figures CANDIDATE: one row
figures() {
    local median base
    [[ -s $results/$1 ]] || { echo "| $1 | did not work |${bases[*]/*/ |}"; return; }
    median=$(median "$1")
    printf '| %s | %s (%s, %s) of %s |' "$1" "$median" "$(sort -n "$results/$1" | head -n 1)" \
        "$(sort -n "$results/$1" | tail -n 1)" "$(wc -l <"$results/$1")"
    for base in "${bases[@]}"; do
        awk -v a="$median" -v b="$(median "$base")" 'BEGIN { if (b > 0) printf " %.2f |", a / b; else printf " |" }'
    done
    echo
}

median() {
    [[ -s $results/$1 ]] && sort -n "$results/$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

rings=(defaults 262144 1048576)
sizes=()
[[ $kind != rxe ]] || sizes=(64 4096 65536 1048576)
for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds" >&2
    # The emulation's speed differs from one run of a program to the next more than the candidates do.
    for _ in 1 2 3 4; do
        for program in ib_write_lat ib_send_lat; do
            perftest $program -s 64 -n $trips | tee >(column 3 | note "$program, least") | column 5 | note $program
        done
        stream lat 64 $trips | tee >(column 3 | note "rstream, least") | column 5 | note rstream
    done
    rsockets 8 -S 64 -C 1 -I $trips | note rsockets
    for program in ib_write_bw ib_send_bw; do
        perftest $program -s 65536 -n $blocks | column 4 | note $program
    done
    for ring in "${rings[@]}"; do
        stream bw 65536 $blocks "${ring#defaults}" | column 4 | note "rstream, $ring"
    done
    # Gigabits in decimal, as it prints them.
    rsockets 7 -S 65536 -C $blocks -I 1 | awk '{ print $1 * 1e9 / 8 / 1048576 }' | note "rsockets, 64 KiB"
    for size in "${sizes[@]}"; do
        for provider in verbs rstream; do
            messages $provider "$size" | note "$provider, $size B"
        done
    done
done
bases=(ib_write_lat ib_send_lat)
table "64 B, µs one way, typical of $trips" "${bases[@]}" rstream rsockets
bases=("ib_write_lat, least" "ib_send_lat, least")
table "64 B, µs one way, least of $trips" "${bases[@]}" "rstream, least"
bases=(ib_write_bw ib_send_bw)
table "64 KiB, MiB/s" "${bases[@]}" "${rings[@]/#/rstream, }" "rsockets, 64 KiB"
for size in "${sizes[@]}"; do
    bases=("verbs, $size B")
    table "\`fi_pingpong -e msg\`, µs one way" "${bases[@]}" "rstream, $size B"
done
