#!/usr/bin/env bash
# Makes the captures of tests/fixtures/captures again. Runs inside the virtual machine:
#
#   cargo build --release && make -C ffi-tests
#   scripts/vm.sh -w tests/fixtures/captures scripts/vm/capture.sh tests/fixtures/captures
set -euo pipefail
folder=$(realpath "$1")
source "$(dirname "$0")/devices.sh"
source "$(dirname "$0")/pair.sh"
cd "$(dirname "$0")/../.."
export FI_PROVIDER_PATH=$PWD/target/release FI_PROVIDER=rstream

# capture NAME DEVICE COMMAND...: what passes a network device while the command runs. Names of programs and
# machines are left out, and times count from the first packet.
capture() {
    local name=$1 device=$2 raw=/tmp/$1.pcapng dumpcap start
    shift 2
    dumpcap -q -i "$device" -f 'tcp or udp port 4791' -w "$raw" 2>"/tmp/$name.log" &
    dumpcap=$!
    until grep -q '^File:' "/tmp/$name.log"; do sleep 0.1; done
    sleep 0.5
    "$@" >"/tmp/$name.out" 2>&1 || { cat "/tmp/$name.out" >&2; return 1; }
    sleep 1
    kill -INT "$dumpcap"
    wait "$dumpcap"
    start=$(tshark -r "$raw" -c 1 -T fields -e frame.time_epoch)
    editcap -F pcap -t "-$start" "$raw" "/tmp/$name.pcap"
    editcap -F pcapng "/tmp/$name.pcap" "$folder/$name.pcapng"
    echo "$name"
}

# pings KIND FAMILY OPTION...: of rping. Each is sends, an RDMA read and an RDMA write.
pings() {
    local server
    server=$(address "$2" "$1" 1)
    pair "rping -s -a $server ${*:3}" "rping -c -a $server ${*:3}"
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
