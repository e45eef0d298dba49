#!/usr/bin/env bash
# Runs inside the virtual machine: every line of the manifest on every kind of device that it names.
#
#   scripts/vm.sh -w LOGS scripts/vm/programs.sh LOGS [NAME]...
#
# Says "ok NAME KIND" or "FAILED NAME KIND", with the end of what the program wrote, and counts as
# scripts/test.sh reads them. All that it wrote is in LOGS/NAME-KIND.log. With from="NAME KIND" in the environment
# it begins there. If the kernel's soft iWARP takes no connections any more, it says "stuck NAME KIND", where to
# begin again in a new machine, and ends with status 3.
#
# A command finds in its environment: kind (siw or rxe), here4 and here6 (addresses of the kind's
# second device, for a server), there4 and there6 (of the first, where a client of these comes from),
# examples (the folder with those of the project), easy (that with those of the C face), copy (stream_copy); and
# pair, failing, perftest, theirs, siw_with, removal, stream, easy_pair and mpi below, in which a SERVER or CLIENT is
# one program with its arguments.
# shellcheck disable=SC2317 # commands of the manifest call the functions
set -uo pipefail
logs=$1
shift
source "$(dirname "$0")/devices.sh"
source "$(dirname "$0")/pair.sh"

# failing TEXT SERVER CLIENT: a pair that fails, with these words on the way.
failing() {
    local log
    log=$(pair "$2" "$3" 2>&1) && { echo "it worked: $log"; return 1; }
    echo "$log"
    [[ $log == *"$1"* ]]
}

# perftest SERVER CLIENT: a pair of perftest's programs. Tried again for what is not tested: they measure the
# processor's clock first, and give up when other work on the host makes it look uneven; their server's listener
# exists for a moment before it takes connections ("Connection refused", over RoCE "REJECTED; error: 8", an invalid
# service ID); and the port that the kernel's RDMA CM picks for a client of siw may be one that TCP has in use.
perftest() {
    local log status
    for _ in {1..5}; do
        log=$(pair "$1" "$2" 2>&1)
        status=$?
        case $log in
            *"Can't produce a report"* | *"Connection refused"* | *"REJECTED; error: 8"* | *"ERRNO: Address already in use"*) ;;
            *) break ;;
        esac
    done
    echo "$log"
    return "$status"
}

# theirs pair|perftest SERVER CLIENT: programs neither of which is this project's; they show that the devices work.
# Such a pair is tried again. Over soft iWARP one run of some fifty does not end; and in the end of rping one thread
# waits for events of the channel that another has freed, which ends the program with an error at times.
theirs() {
    local attempt status=0
    for attempt in 1 2 3; do
        timeout -k 5 20 bash -c '"$@"' - "$@"
        status=$?
        ((status != 0)) || break
        echo "attempt $attempt failed: status $status"
    done
    return "$status"
}

# siw_with "NAME=VALUE ..." [COMMAND...]: parameters of siw's side of the MPA handshake, until the next program.
siw_with() {
    local setting
    for setting in $1; do
        echo "${setting#*=}" >"/sys/module/siw/parameters/${setting%%=*}" || return
    done
    "${@:2}"
}

# removal SERVER: its device is taken away and comes back; the server notices and ends.
removal() {
    local server
    start_server "$1" || return
    "$fault" "$kind" remove || return
    if wait "$server"; then
        echo "the server did not mind"
        return 1
    fi
    "$fault" "$kind" mend
}

# stream SERVER_FABRIC CLIENT_FABRIC ADDRESS: a file from client to server over a stream; stream_copy compares
# checksums, which the server sends back.
stream() {
    rm -f /tmp/received
    pair "$copy recv -q -p 7471 -F $1 -a $3 -o /tmp/received" "$copy send -q -p 7471 -F $2 $3 $examples/rping" &&
        cmp "$examples/rping" /tmp/received
}

# easy_pair SERVER ITS_DEVICE CLIENT ITS_DEVICE TEXT...: a pair that says all of this.
easy_pair() {
    local log text
    log=$(pair "$easy/$1 $here4 7471 $2" "$easy/$3 $here4 7471 $4") || { echo "$log"; return 1; }
    echo "$log"
    for text in "${@:5}"; do
        [[ $log == *"$text"* ]] || { echo "nobody said: $text"; return 1; }
    done
}

# mpi PROGRAM: a job of two processes, whose messages go over ofi_rxm and the RDMA devices; one-sided operations
# are made of messages. libfabric's log names the fabrics that are opened, and first in each line the process.
mpi() {
    local log status opened
    log=$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 FI_LOG_LEVEL=info FI_LOG_SUBSYS=core \
        mpirun.openmpi -n 2 --oversubscribe --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include rstream \
        --mca osc pt2pt "target/c/vm-openmpi/$1" 2>&1)
    status=$?
    echo "$log"
    opened=$(grep -aoE 'libfabric:[0-9]+:.*Opened fabric: ibv' <<<"$log" | cut -d : -f 2 | sort -u | wc -l)
    echo "$opened processes opened a fabric of RDMA devices"
    ((status == 0 && opened == 2))
}

# siw_is_stuck: whether rdma-core's own programs cannot connect over soft iWARP, either. That happens in one of some
# hundred runs, and lasts.
siw_is_stuck() {
    local server="rping -s -p 7199 -a $here4 -C 1" client="rping -c -p 7199 -a $here4 -C 1"
    ! timeout -k 5 20 bash -c 'pair "$@"' - "$server" "$client" >/dev/null 2>&1
}

export -f listening start_server pair failing perftest theirs siw_with removal stream easy_pair mpi

export examples=target/checks/examples easy=target/c/vm-easy copy=target/c/gcc/stream_copy
export fault=scripts/vm/fault.sh
failed=0
while read -r name kinds limit command; do
    [[ -n $name && $name != \#* ]] || continue
    (($# == 0)) || [[ " $* " == *" $name "* ]] || continue
    for kind in ${kinds//,/ }; do
        export kind
        [[ -z ${from-} || $from == "$name $kind" ]] || continue
        from=
        here4=$(address 4 "$kind" 1) here6=$(address 6 "$kind" 1)
        there4=$(address 4 "$kind" 0) there6=$(address 6 "$kind" 0)
        export here4 here6 there4 there6
        [[ $kind != siw ]] || siw_with "mpa_version=2 mpa_crc_required=N peer_to_peer=N"
        log=$logs/$name-$kind.log
        start=$SECONDS
        timeout -k 5 "$limit" bash -c "$command" >"$log" 2>&1 </dev/null
        status=$?
        if ((status == 0)); then
            echo "ok $name $kind ($((SECONDS - start)) s)"
            grep -E '^[0-9]+ passed, 0 failed' "$log" || echo "1 passed, 0 failed"
        else
            ((status != 124)) || echo "no end after $limit s" >>"$log"
            if ((status == 124)) && [[ $kind == siw ]] && siw_is_stuck; then
                echo "stuck $name $kind"
                exit 3
            fi
            echo "FAILED $name $kind: status $status"
            tail -n 20 "$log" | sed 's/^/    /'
            grep -E '^[0-9]+ passed, [1-9][0-9]* failed' "$log" || echo "0 passed, 1 failed"
            failed=1
        fi
    done
done <"$(dirname "$0")/manifest"
exit "$failed"
