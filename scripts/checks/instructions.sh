# Counted instructions of the 64 B path, so that a slow-down is seen on any machine.

instructions_file=docs/instructions.txt
# How far a count may be from the one that is checked in: other compilers and C libraries differ a little.
instructions_percent=3
instructions_messages=1000

# counted NAME: instructions of one message sent and received
counted() {
    local log=$logs/instructions-$1 what=stream
    [[ $1 != message ]] || what=message
    FI_RSTREAM_SHM=$([[ $1 != shm ]]; echo $?) with_provider valgrind --tool=callgrind '--toggle-collect=exchange_*' \
        --callgrind-out-file="$log.callgrind" "$programs/gcc/instructions" $what $instructions_messages >"$log" 2>&1 || { cat "$log" >&2; return 1; }
    sed -n 's/^==[0-9]*== Collected : \([0-9]*\)$/\1/p' "$log" | awk -v messages=$instructions_messages '{ printf "%d", $1 / messages }'
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
    compare shm
    compare iwarp
    compare message
}
