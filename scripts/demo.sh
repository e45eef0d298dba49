#!/usr/bin/env bash
# Streams a file of 1 GiB from one process to another through stock libfabric and this provider,
# checks that it arrived whole, and compares the rate with the same copy over plain TCP.
#
#   scripts/demo.sh [BYTES]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cargo.sh

bytes=${1:-1073741824}
folder=target/demo
programs=target/c/demo
source_file=$folder/source-$bytes
rounds=3
large=(-S 1m -R 1m -b 256k)
receivers=()

cleanup() {
    local id
    for id in "${receivers[@]}"; do
        kill "$id" 2>/dev/null || true
    done
    rm -f "$folder/received" "$folder"/*.part-*
}
trap cleanup EXIT

say() {
    printf '\n== %s\n' "$*"
}

# A file of exactly $bytes out of what this machine has: its programs and libraries, as often as it takes.
make_source() {
    local part=$source_file.new length=0
    if [[ -f $source_file ]]; then
        return
    fi
    rm -f "$part"
    # tar is cut off when there is enough: not a failure.
    while ((length < bytes)); do
        { tar -C / -cf - usr/bin usr/lib 2>/dev/null || true; } |
            head -c $((bytes - length)) >>"$part" || true
        length=$(stat -c %s "$part")
    done
    mv "$part" "$source_file"
}

# copy NAME OUTPUT STREAM_COPY_OPTIONS...: one copy; leaves both sides' reports in logs.
copy() {
    local name=$1 output=$2 port='' receiver
    shift 2
    rm -f "$folder/$name-recv.err"
    "$programs/stream_copy" recv -p 0 -a 127.0.0.1 -q -o "$output" "$@" \
        >"$folder/$name-recv.log" 2>"$folder/$name-recv.err" &
    receiver=$!
    receivers+=("$receiver")
    for _ in {1..200}; do
        port=$(sed -n 's/^listening on .* port \([0-9]*\)$/\1/p' "$folder/$name-recv.err" 2>/dev/null || true)
        [[ -n $port ]] && break
        sleep 0.05
    done
    if [[ -z $port ]]; then
        cat "$folder/$name-recv.err" >&2
        return 1
    fi
    "$programs/stream_copy" send -p "$port" "$@" 127.0.0.1 "$source_file" >"$folder/$name-send.log"
    wait "$receiver"
    receivers=()
}

# verified_copy NAME STREAM_COPY_OPTIONS...: into a file, which is compared.
verified_copy() {
    local name=$1
    shift
    rm -f "$folder/received"
    copy "$name" "$folder/received" "$@"
    printf 'sender    %s\n' "$(<"$folder/$name-send.log")"
    printf 'receiver  %s\n' "$(<"$folder/$name-recv.log")"
    if [[ $(checksum "$name-send") != "$(checksum "$name-recv")" ]]; then
        echo "the checksums differ" >&2
        return 1
    fi
    if ! cmp -s "$source_file" "$folder/received"; then
        echo "the received file differs" >&2
        return 1
    fi
    echo "sha256    $(sha256sum "$folder/received" | cut -d' ' -f1) of the received file"
    echo "checksums equal, files equal byte by byte"
}

checksum() {
    sed -n 's/.*checksum //p' "$folder/$1.log"
}

rate() {
    sed -n 's/.* \([0-9.]*\) MB\/s.*/\1/p' "$folder/$1-send.log"
}

median() {
    printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"
}

say "what is needed"
scripts/setup.sh

say "building the provider and the C programs"
cargo build --release --quiet
make -s -C ffi-tests BUILD="$PWD/$programs"
echo "target/release/librstream_fi.so, $programs/stream_copy"

say "the file"
mkdir -p "$folder"
make_source
echo "$source_file, $bytes bytes"
echo "sha256 $(sha256sum "$source_file" | cut -d' ' -f1)"

export FI_PROVIDER_PATH=$PWD/target/release FI_PROVIDER=rstream

# Whoever writes the file first pays for the memory that holds it: let that be neither.
cp "$source_file" "$folder/received"

say "through libfabric $(pkg-config --modversion libfabric) and rstream with 1 MiB rings, into a file"
verified_copy rstream "${large[@]}"

say "the same over plain TCP"
verified_copy tcp -t

say "rates without writing a file, $rounds rounds in turn"
names=("rstream, default rings" "rstream, 1 MiB rings" "plain TCP")
rates=('' '' '')
for ((round = 0; round < rounds; round++)); do
    copy default /dev/null
    rates[0]+=" $(rate default)"
    copy large /dev/null "${large[@]}"
    rates[1]+=" $(rate large)"
    copy plain /dev/null -t -b 256k
    rates[2]+=" $(rate plain)"
done
# shellcheck disable=SC2086 # the rates are words
against=$(median ${rates[2]})
for i in 0 1 2; do
    # shellcheck disable=SC2086
    middle=$(median ${rates[i]})
    printf '%-24s %8s MB/s (median of%s)   %s times plain TCP\n' "${names[i]}" "$middle" "${rates[i]}" \
        "$(awk -v a="$middle" -v b="$against" 'BEGIN { printf "%.2f", a / b }')"
done
echo "Default rings hold 32 KiB; bulk transfers want larger ones (FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE)."
