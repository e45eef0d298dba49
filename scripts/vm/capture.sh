#!/usr/bin/env bash
# Makes the captures of tests/fixtures/captures again, or those that are named. Runs inside the virtual machine:
#
#   cargo build --release && cargo build --release -p rdma-verbs --examples && make -C ffi-tests
#   scripts/vm/nfs-tools.sh
#   scripts/vm.sh -w tests/fixtures/captures scripts/vm/capture.sh tests/fixtures/captures [NAME]...
set -euo pipefail
folder=$(realpath "$1")
wanted=" ${*:2} "
source "$(dirname "$0")/devices.sh"
source "$(dirname "$0")/pair.sh"
cd "$(dirname "$0")/../.."
export FI_PROVIDER_PATH=$PWD/target/release FI_PROVIDER=rstream

# is_wanted NAME
is_wanted() {
    [[ $wanted == "  " || $wanted == *" $1 "* ]]
}

# record NAME DEVICE: begins to capture what passes a network device, of each packet $snaplen bytes.
record() {
    dumpcap -q -i "$2" -s "${snaplen:-262144}" -f 'tcp or udp port 4791' -w "/tmp/$1.raw" 2>"/tmp/$1.log" &
    dumpcap=$!
    until grep -q '^File:' "/tmp/$1.log"; do sleep 0.1; done
    sleep 0.5
}

# keep NAME: ends that. Names of programs and machines are left out, and times count from the first packet.
keep() {
    local start
    sleep 1
    kill -INT "$dumpcap"
    wait "$dumpcap"
    start=$(tshark -r "/tmp/$1.raw" -c 1 -T fields -e frame.time_epoch)
    editcap -F pcap -t "-$start" "/tmp/$1.raw" "/tmp/$1.pcap"
    editcap -F pcapng "/tmp/$1.pcap" "$folder/$1.pcapng"
    echo "$1"
}

# capture NAME DEVICE COMMAND...: what passes a network device while the command runs.
capture() {
    local name=$1
    is_wanted "$name" || return 0
    record "$name" "$2"
    "${@:3}" >"/tmp/$name.out" 2>&1 || { cat "/tmp/$name.out" >&2; return 1; }
    keep "$name"
}

# capture_late NAME DEVICE COMMAND...: the same, without what passes before the command says something. It is
# stopped until the capture has begun.
capture_late() {
    local name=$1 command
    is_wanted "$name" || return 0
    set -m
    "${@:3}" >"/tmp/$name.out" 2>&1 &
    command=$!
    set +m
    until [[ -s /tmp/$name.out ]]; do sleep 0.1; done
    kill -STOP -- "-$command"
    record "$name" "$2"
    kill -CONT -- "-$command"
    wait "$command" || { cat "/tmp/$name.out" >&2; return 1; }
    keep "$name"
}

# pings KIND FAMILY OPTION...: of rping. Each is sends, an RDMA read and an RDMA write. With -v each end says
# what it was given, at once.
pings() {
    local server
    server=$(address "$2" "$1" 1)
    pair "stdbuf -oL rping -s -a $server ${*:3}" "rping -c -a $server ${*:3}"
}

# copy OPTION...: a small file by the embedded device.
copy() {
    head -c 5000 LICENSE-APACHE >/tmp/sample
    pair "target/c/cc/stream_copy recv -q -a 127.0.0.1 -p 7471 -o /tmp/copy $*" \
        "target/c/cc/stream_copy send -q -p 7471 $* 127.0.0.1 /tmp/sample"
    cmp /tmp/sample /tmp/copy
}

capture siw-rping siw-0 pings siw 4 -C 2 -S 2000
echo 1 >/sys/module/siw/parameters/mpa_crc_required
capture siw-rping-crc siw-0 pings siw 6 -C 1 -S 10000
capture rxe-rping rxe-0 pings rxe 4 -C 2 -S 2000
capture rxe-rping-segments rxe-0 pings rxe 6 -C 1 -S 10000
capture embedded-copy lo copy
FI_RSTREAM_IWARP_CRC=1 capture embedded-copy-iwarp lo copy -P iwarp
capture embedded-messages lo target/c/cc/conformance each_call writes_with_data
echo 0 >/sys/module/siw/parameters/mpa_crc_required

# with KIND FAULT COMMAND...: while this happens to packets from either device.
with() {
    local end status=0
    modprobe sch_netem
    # shellcheck disable=SC2086 # several words
    for end in 0 1; do tc qdisc add dev "$1-$end" root netem $2; done
    "${@:3}" || status=$?
    for end in 0 1; do tc qdisc del dev "$1-$end" root; done
    return "$status"
}

# one of eight packets is lost; one takes so long that there is time to begin a capture.
losses='loss 12%' delay='delay 200ms'

# perftest KIND PROGRAM OPTION...: a pair of one of perftest's programs.
perftest() {
    local server
    server=$(address 4 "$1" 1)
    pair "$2 -R ${*:3}" "$2 -R ${*:3} $server"
}

# wrapping: writes both ways, then reads, without the connection manager and with packet numbers that begin shortly before
# they wrap around: what draws them is preloaded.
wrapping() {
    local server program
    server=$(address 4 rxe 1)
    echo 'long lrand48(void) { return 0xfffffa; }' | cc -shared -fPIC -x c -o /tmp/numbers.so -
    for program in ib_write_lat ib_read_lat; do
        pair "env LD_PRELOAD=/tmp/numbers.so $program -d rxe1 -x 1 -m 1024 -n 5 -s 2100" \
            "env LD_PRELOAD=/tmp/numbers.so $program -d rxe0 -x 1 -m 1024 -n 5 -s 2100 $server"
    done
}

# wrong_key: a read of a key that names nothing. The client that is refused fails.
wrong_key() {
    local server
    server=$(address 4 siw 1)
    pair "rping -s -a $server -C 1" "target/release/examples/rping -c -a $server -C 1 --wrong-key" || true
}

snaplen=128 capture rxe-headers rxe-0 pings rxe 4 -C 1 -S 10000
capture rxe-lossy rxe-0 with rxe "$losses" pings rxe 4 -C 3 -S 6000
capture_late rxe-midstream rxe-0 with rxe "$delay" pings rxe 4 -v -C 2 -S 10000
capture rxe-wrap rxe-0 wrapping
capture rxe-atomics rxe-0 perftest rxe ib_atomic_lat -n 10
capture siw-perftest siw-0 perftest siw ib_write_bw -n 10 -s 4096
capture siw-terminate siw-0 wrong_key
capture_late siw-midstream siw-0 with siw "$delay" pings siw 4 -v -C 2 -S 10000
# Several segments to a message: a lost one leaves a gap.
for end in 0 1; do ip link set "siw-$end" mtu 1500; done
capture siw-lossy siw-0 with siw "$losses" pings siw 4 -C 2 -S 6000
for end in 0 1; do ip link set "siw-$end" mtu 9000; done

if [[ -d target/vm/tools/usr/sbin ]]; then
    source scripts/vm/nfs.sh
    serve_nfs >&2
    head -c 11000 LICENSE-APACHE >/export/license
    touch /export/entry-{1..40}
    capture nfs-siw siw-0 use_nfs siw
    capture nfs-rxe rxe-0 use_nfs rxe
fi
