# Counted system calls of short messages for which both sides sleep, so that another one is seen on any machine.

system_calls_file=docs/system-calls.txt
# The pauses of the program, and asking for the time: outside valgrind that is no system call.
not_of_the_message='clock_|nanosleep|gettimeofday'

# system_calls_in NAME WAY COUNT SHM: all of a run of the program system_calls
system_calls_in() {
    local log=$logs/system-calls-$1-$3
    # Without the time for which streams look for bytes before their callers sleep.
    FI_RSTREAM_SPIN_US=0 FI_RSTREAM_SHM=$4 with_provider valgrind --tool=none --fair-sched=try --trace-syscalls=yes \
        "$programs/gcc/system_calls" "$2" "$3" >"$log" 2>&1 || { tail "$log" >&2; return 1; }
    # Each has one result. Its line begins with that of the call only if no other thread's came between.
    echo $(($(grep -oE '(Success|Failure)\(' "$log" | wc -l) - $(grep -oE "sys_($not_of_the_message)" "$log" | wc -l)))
}

# compare_calls NAME WAY SHM: the calls of a message there and back, in tenths
compare_calls() {
    local name=$1 before few many now
    before=$(sed -n "s/^$name //p" "$system_calls_file")
    # A thread may have been awake a few times. If one of the two runs waited longer for its connection than the other,
    # which asks the socket each time, that counts as well: a busy machine gets three attempts.
    for _ in 1 2 3; do
        few=$(system_calls_in "$1" "$2" 100 "$3")
        many=$(system_calls_in "$1" "$2" 300 "$3")
        now=$(((many - few) / 20))
        echo "$name: $((now / 10)).$((now % 10)) system calls, ${before:?no line of $name in $system_calls_file} in $system_calls_file"
        if ((now >= before * 10 - 3 && now <= before * 10 + 3)); then
            echo "1 passed, 0 failed"
            return
        fi
    done
    echo "error: that differs. $logs/system-calls-$1-300 has them; with a good reason, write the new number"
    return 1
}

system_calls() {
    compare_calls stream-shm stream 1
    compare_calls stream-iwarp stream 0
    compare_calls fd fd 1
    compare_calls sread sread 1
}
