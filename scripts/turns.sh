#!/usr/bin/env bash
# Programs of fabtests over this provider and over libfabric's tcp, in turns, each side on a processor of its own. The
# processors of some virtual machines share a cache at one time and none at another, which changes everything by a
# factor of three: a pair of runs counts if that was the same before and after it, and each of the two has its medians.
#
#   FABTESTS_BIN=FOLDER scripts/turns.sh [-n PAIRS] [-o FOLDER] TEST SIZE...
#
#   -n PAIRS    of runs for each size (default 15)
#   -o FOLDER   beside this other build of the provider, librstream_fi.so in this folder, instead of tcp
#   TEST        a program with its options, as one word: 'fi_rma_bw -e msg -o read'; above ofi_rxm if its name has rdm
#   SIZE        in bytes
#
# FI_PROVIDER_PATH names the folder of librstream_fi.so; target/release unless set.
set -euo pipefail
cd "$(dirname "$0")/.."

pairs=15 own=${FI_PROVIDER_PATH:-$PWD/target/release} other='' against=tcp
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}
while getopts n:o: option; do
    case $option in
        n) pairs=$OPTARG ;;
        o) other=$OPTARG against=rstream ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[[ -n ${FABTESTS_BIN-} && $# -gt 1 ]] || usage
read -ra test <<<"$1"
shift
layer=''
[[ ${test[0]} != *rdm* ]] || layer=';ofi_rxm'
[[ ! -d $FABTESTS_BIN/../lib ]] || export LD_LIBRARY_PATH=$FABTESTS_BIN/../lib
unset FI_PROVIDER

# A cache line goes there and back in 0.1 µs through a cache that the processors share, else in 0.3.
cache() {
    target/release/rstream-perf --processors 0,1 -r 1 -d 0.02 -t pingpong -o line 2>/dev/null |
        awk '$2 == "line" { print ($3 < 0.2 ? "shared" : "separate") }'
}

# once FOLDER PROVIDER SIZE: microseconds for each message.
once() {
    local run=(env FI_PROVIDER_PATH="$1" "$FABTESTS_BIN/${test[0]}" "${test[@]:1}" -p "$2$layer" -S "$3"
        -I $((1000000000 / ($3 + 100000) + 20)) -w 20) server
    taskset -c 0 "${run[@]}" -s 127.0.0.1 >/dev/null 2>&1 &
    server=$!
    sleep 0.15
    taskset -c 1 timeout 60 "${run[@]}" 127.0.0.1 |
        awk '{ for (i = 1; i <= NF; i++) if ($i == "usec/xfer") column = i } END { print $column }'
    wait "$server"
}

# Lines "STATE SIZE MICROSECONDS MICROSECONDS".
measured() {
    local size pair state here there
    for size; do
        for ((pair = 0; pair < pairs; pair++)); do
            state=$(cache)
            here=$(once "$own" rstream "$size")
            there=$(once "${other:-$own}" "$against" "$size")
            [[ $(cache) != "$state" ]] || echo "$state $size $here $there"
        done
    done
}

measured "$@" | python3 -c '
import statistics, sys
groups = {}
for state, size, here, there in map(str.split, sys.stdin):
    groups.setdefault((int(size), state), []).append((float(here), float(there)))
print("size, cache, pairs: quartiles of the time beside the other, medians of both in µs")
for (size, state), runs in sorted(groups.items()):
    ratios = [here / there for here, there in runs]
    quartiles = statistics.quantiles(ratios) if len(ratios) > 1 else ratios
    print(size, state, len(runs), *(f"{ratio:.2f}" for ratio in quartiles),
          *(f"{statistics.median(side):.2f}" for side in zip(*runs)))
'
