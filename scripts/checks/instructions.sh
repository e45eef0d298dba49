# Counted instructions of the 64 B path, so that a slow-down is seen on any machine.

instructions_file=docs/instructions.txt
# How far a count may be from the one that is checked in: other compilers and C libraries differ a little.
instructions_percent=3
instructions_messages=1000

# instructions_of LOG FUNCTIONS COMMAND...: those of one message in these functions of a program
instructions_of() {
    local log=$1 functions=$2
    shift 2
    valgrind --tool=callgrind "--toggle-collect=$functions" --callgrind-out-file="$log.callgrind" "$@" >"$log" 2>&1 ||
        { cat "$log" >&2; return 1; }
    sed -n 's/^==[0-9]*== Collected : \([0-9]*\)$/\1/p' "$log" | awk -v messages=$instructions_messages '{ printf "%d", $1 / messages }'
}

# counted NAME: instructions of one message sent and received
counted() {
    local log=$logs/instructions-$1 what=stream
    case $1 in
        raw | typed) instructions_of "$log" "typed_cost::exchange_$1" "$typed_cost" "$1" $((instructions_messages / 2)) ;;
        *)
            [[ $1 != message ]] || what=message
            FI_RSTREAM_SHM=$([[ $1 != shm ]]; echo $?) with_provider \
                instructions_of "$log" 'exchange_*' "$programs/gcc/instructions" $what $instructions_messages
            ;;
    esac
}

# compare NAME
compare() {
    local name=$1 now before file=$instructions_file
    before=$(sed -n "s/^$name //p" "$file")
    now=$(counted "$1")
    echo "$name: $now instructions, ${before:?no line of $name in $file} in $file"
    if ((now * 100 > before * (100 + instructions_percent))); then
        echo "error: more instructions than before. See callgrind_annotate $logs/instructions-$1.callgrind; with a good"
        echo "reason, write it into docs/performance.md and \"$name $now\" into $file"
        return 1
    elif ((now * 100 < before * (100 - instructions_percent))); then
        echo "error: far fewer instructions than before. Keep that: write \"$name $now\" into $file"
        return 1
    fi
    echo "1 passed, 0 failed"
}

instructions() {
    local typed_cost
    typed_cost=$(build cargo bench -p rdma-verbs --bench typed_cost --no-run --message-format=json | jq -r '.executable // empty')
    compare shm
    compare iwarp
    compare message
    compare raw
    compare typed
}
