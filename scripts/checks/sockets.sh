# shellcheck shell=bash
# Sockets programs with the preload library: the kernel's sockets are the model.

# Builds the library, what runs it, and the C programs, which need nothing but the C library.
build_sockets() {
    build cargo build --release --quiet -p rstream-preload -p rstream-run -p rstream-stat
    mkdir -p "$programs/sockets"
    local program
    for program in model killed handed idle; do
        gcc -O2 -g -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -pthread \
            -o "$programs/sockets/$program" "ffi-tests/sockets/$program.c"
    done
}

# preloaded TURNS COMMAND...: with the library; connections are upgraded after so many turns.
preloaded() {
    RSTREAM_SOCKETS_AFTER=$1 "$provider/rstream-run" "${@:2}"
}

# What the library needs must be on every machine.
needs_little() {
    ! ldd "$provider/librstream_preload.so" | grep -E 'fabric|ibverbs|rdmacm'
}

# Random calls whose outcomes the rules of TCP sockets determine: over TCP, and upgraded at once, early and late.
sockets_model() {
    build_sockets
    local model=$programs/sockets/model after program
    needs_little
    "$model" 0 300
    for after in 0 2 4; do
        preloaded "$after" "$model" 0 1500
    done
    for program in killed handed; do
        "$programs/sockets/$program"
        for after in 0 8; do
            preloaded "$after" "$programs/sockets/$program"
        done
    done
    preloaded 8 "$programs/sockets/idle" "${long:+9}900"
}

# Random calls of two processes, whose transcripts over TCP and with the library have to be equal.
sockets_transcripts() {
    local transcripts=$programs/sockets/transcripts seeds=${long:+10000} compiler
    seeds=${seeds:-1000}
    build_sockets
    for compiler in clang gcc; do
        "$compiler" -O2 -g -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -pthread -o "$transcripts" \
            ffi-tests/sockets/transcripts/*.c
    done
    "$transcripts" "$provider/librstream_preload.so" 0 "$seeds"
}

# build_sockets_cases PROGRAM
build_sockets_cases() {
    gcc -O2 -g -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -pthread -o "$1" ffi-tests/sockets/cases/*.c
}

# Named tests: each call, each way to wait, each end. Over TCP, and upgraded.
sockets_cases() {
    local cases=$programs/sockets/cases after
    build_sockets
    build_sockets_cases "$cases"
    "$cases" -j 4
    for after in 0 8; do
        preloaded "$after" "$cases" -j 4
    done
}

# The named tests, and GLib's of proxies, in which four threads speak with each other, while the library pauses at
# random: its threads meet in orders that hardly come by themselves.
sockets_jitter() {
    local cases=$programs/sockets/jitter-cases provider=$PWD/target/jitter/checks run
    mkdir -p "$programs/sockets"
    build_sockets_cases "$cases"
    RUSTFLAGS='--cfg rstream_jitter' build cargo build --profile checks --target-dir target/jitter \
        -p rstream-preload -p rstream-run
    preloaded 0 "$cases" -j 4
    for run in {1..50}; do
        preloaded 0 timeout 60 /usr/libexec/installed-tests/glib/proxy-test >/dev/null || { echo "error: run $run"; return 1; }
    done
    echo "50 passed, 0 failed"
}
