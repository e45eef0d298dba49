#!/usr/bin/env bash
# Runs an installed fabtests over one provider: what its runfabtests.sh has, fi_ubertest with a
# configuration of this folder, and programs, or uses of them, that runfabtests.sh does not know.
#
#   fabtests-config/run.sh [-t SETS] [-d KIND] PREFIX PROVIDER RESULTS
#
#   -t SETS    as runfabtests.sh takes them (default quick; all,short is everything)
#   -d KIND    inside the virtual machine (scripts/vm.sh): between its two devices of this kind (rxe), without
#              what KIND.exclude names
#   PREFIX     where fabtests is installed, and libfabric if it brings one
#   PROVIDER   rstream or rstream;ofi_rxm; or to compare with, with the same tests left out, tcp or tcp;ofi_rxm
#   RESULTS    a line "RESULT SECONDS TEST" for each test: pass, fail, absent (the provider says that it lacks
#              something) or excluded. RESULTS.log has the output of those that did not pass
#
# FI_PROVIDER_PATH names the folder of librstream_fi.so; target/release unless set.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# Seconds for a test: what runfabtests.sh has. An emulated machine is slow.
sets=quick device='' limit=120
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}
while getopts t:d: option; do
    case $option in
        t) sets=$OPTARG ;;
        d) device=$OPTARG limit=300 ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
(($# == 3)) || usage
prefix=$(realpath "$1") provider=$2 results=$(realpath "$3")
export FI_PROVIDER_PATH=${FI_PROVIDER_PATH:-$here/../target/release} PATH=$prefix/bin:$PATH
case $provider in
    *';'*) layer=${provider#*;} kind=rdm ;;
    *) layer=rstream kind=msg ;;
esac

# host FAMILY END: the address of the client (0) or the server (1).
host() {
    if [[ -n $device ]]; then
        address "$1" "$device" "$2"
    else
        [[ $1 == 4 ]] && echo 127.0.0.1 || echo ::1
    fi
}

options=(-f "$here/$layer.exclude")
if [[ -n $device ]]; then
    # shellcheck source=scripts/vm/devices.sh
    source "$here/../scripts/vm/devices.sh"
    # The programs take the embedded device if an RDMA device lacks what they ask for, unless they name the
    # fabric.
    options+=(-f "$here/$device.exclude" -C '-f ibv' -L '-f ibv')
fi
server=$(host 4 1) client=$(host 4 0)

# sleep SECONDS: runfabtests.sh gives a server a second before it starts the client, which a busy machine may need
# for the server's start alone. So this waits until somebody listens on TCP as well, which is the server, or the
# server ends. RDMA devices do not show who listens: there it waits longer.
sleep() {
    local tenths
    command sleep "$(($1 * ${rdma:-1}))"
    [[ -z ${rdma-} && $1 == 1 ]] || return 0
    for ((tenths = 0; tenths < 300; tenths++)); do
        # The state of a socket that listens, in proc_net_tcp(5).
        if awk '$4 == "0A" { found = 1 } END { exit !found }' /proc/net/tcp /proc/net/tcp6 ||
            ! kill -0 "$!" 2>/dev/null; then
            return 0
        fi
        command sleep 0.1
    done
}
export -f sleep
# How many seconds the emulated machine waits for each.
unset rdma
[[ -z $device ]] || export rdma=3

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
: >"$results.log"
: >none

# Ports would be taken twice by runs beside each other, and runfabtests.sh ends whatever is called fi_* on a
# machine.
isolated() {
    if [[ -n $device ]]; then
        "$@"
    else
        "$here/../scripts/isolated.sh" "$@"
    fi
}

# run_fabtests OPTION...: has a name, a result and a time for each test reported; its own status is their
# number.
run_fabtests() {
    isolated runfabtests.sh -vv -p "$prefix/bin" -s "$server" -c "$client" "$@" "$provider" >report 2>&1 || true
    cat report >>"$results.log"
    if ! grep -q '^  result:' report; then
        echo "error: runfabtests.sh has run nothing:" >&2
        tail report >&2
        return 1
    fi
    awk -v "address=$server" '
        BEGIN {
            said["Pass"] = "pass"
            said["Fail"] = "fail"
            said["Notrun"] = "absent"
            said["Excluded"] = "excluded"
        }
        /^- name:/ { sub(/^- name: */, ""); sub(/ -p ".*"$/, ""); gsub(address, "ADDRESS"); test = $0 }
        # fi_ubertest says behind it how many of its tests succeeded: "[71/72]", and nothing of those that
        # it had to skip.
        /^  result:/ {
            split($3, counts, /[][\/]/)
            result = $2 == "Pass" && counts[2] != counts[3] ? "absent" : said[$2]
        }
        /^  time:/ { print result, $2, test }
    ' report
}

# pair NAME SERVER CLIENT: two commands, the client when the server had time to listen.
pair() {
    local start=$SECONDS status=0 result
    isolated bash -c '
        timeout "$3" $1 & sleep 1
        timeout "$3" $2; client=$?
        wait "$!"; exit "$((client ? client : $?))"' - "$2" "$3" "$limit" >output 2>&1 || status=$?
    case $status in
        0) result=pass ;;
        # ENODATA, ENOSYS
        61 | 38) result=absent ;;
        *) result=fail; { printf -- '- name: %s\n  result: Fail\n' "$1"; cat output; } >>"$results.log" ;;
    esac
    echo "$result $((SECONDS - start)) $1"
}

# on END: what names the device there, to programs that cannot name a fabric.
on() {
    [[ -z $device ]] || echo "-d $device$1"
}

# RDMA devices need modes that fi_ubertest grants only where its configuration has them.
ubertest() {
    local edit="s/PROVIDER/$provider/"
    [[ -z $device ]] || edit+='
        /mode:/d
        /ep_type:/a mode: [FI_CONTEXT, FI_RX_CQ_DATA],
        /ep_type:/a mr_mode: [FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY],'
    sed "$edit" "$here/$layer.test" >configuration
    run_fabtests -T 600 -t complex -u "$folder/configuration" -f "$folder/none" -C "$(on 0)" -L "$(on 1)" |
        sed "s/$/ -u $layer.test/"
}

pingpong() {
    local command="fi_pingpong -e $kind -p $provider -c"
    pair "fi_pingpong -e $kind" "$command $(on 1)" "$command $(on 0) $server"
}

# Messages of every length between threads that sleep: runfabtests.sh has short ones there.
sleepers() {
    local program programs=(fi_msg_pingpong) wait_by messages=50 command
    [[ $kind == msg ]] || programs=(fi_rdm_pingpong fi_rdm_tagged_pingpong)
    [[ -z $device ]] || messages=5
    for program in "${programs[@]}"; do
        for wait_by in sread fd; do
            command="$program ${device:+-f ibv} -p $provider -S all -I $messages -w 2 -c $wait_by"
            pair "$program -S all -c $wait_by" "$command -s $server" "$command -s $client $server"
        done
    done
}

# Byte streams, of which only 1.17 has a test.
streams() {
    local family stream="fi_stream_msg -p rstream"
    for family in 4 6; do
        pair "fi_stream_msg (IPv$family)" "$stream -s $(host "$family" 1)" \
            "$stream -s $(host "$family" 0) $(host "$family" 1)"
    done
}

{
    run_fabtests -T "$limit" -t "$sets" "${options[@]}"
    ubertest
    pingpong
    sleepers
    [[ $provider != rstream || ! -x $prefix/bin/fi_stream_msg ]] || streams
} >"$results"
