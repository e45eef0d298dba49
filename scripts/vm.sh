#!/usr/bin/env bash
# Runs a command in a virtual machine that has soft iWARP (siw) and soft RoCE (rxe) devices.
#
#   scripts/vm.sh [-d KINDS] [-c PROCESSORS] [-m MIB] [-t SECONDS] [-w FOLDER]... COMMAND [ARGUMENT]...
#
#   -d KINDS       the devices: siw, rxe, "siw rxe" (the default) or "" for none
#   -c PROCESSORS  how many the machine has (2)
#   -m MIB         its memory (4096)
#   -t SECONDS     how long all of it may take, booting included (300)
#   -w FOLDER      a folder that the command may change
#
# The machine sees this machine's files, and the command runs as root in the same folder with the same
# environment. What it writes outside the folders of -w is gone with it. Its output and its exit status are
# those of this command; 124: it took too long, and standard error has what its threads did after three quarters
# of the time; 125: the machine failed. scripts/vm/devices.sh names the
# devices and their addresses. It is an emulation: nothing has to be allowed, nothing is installed by this.
set -euo pipefail

fail() {
    echo "vm: $*" >&2
    exit 125
}

devices="siw rxe" processors=2 memory=4096 limit=300 writable=()
while getopts d:c:m:t:w: option; do
    case $option in
        d) devices=$OPTARG ;;
        c) processors=$OPTARG ;;
        m) memory=$OPTARG ;;
        t) limit=$OPTARG ;;
        w) writable+=("$(realpath "$OPTARG")") ;;
        *) fail "see the head of $0" ;;
    esac
done
shift $((OPTIND - 1))
(($# > 0)) || fail "no command: see the head of $0"

here=$(realpath "$(dirname "$0")")
vm=$(dirname "$here")/target/vm
"$here/vm/prepare.sh" >&2 || exit 125

umask 077
run=$(mktemp -d "$vm/run.XXXXXX")
trap 'rm -rf "$run"' EXIT

# ---- the job --------------------------------------------------------------------------------

{
    declare -px
    # As root, who finds programs in more folders, and with temporary files in the machine's own memory.
    echo 'PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; unset TMPDIR'
    printf 'cd %q || exit 125\n' "$PWD"
    printf '%q ' exec "$@"
} >"$run/job"
declare -p devices vm limit >"$run/settings"
: >"$run/writable"
((${#writable[@]} == 0)) || printf '%s\0' "${writable[@]}" >"$run/writable"

# ---- the machine ----------------------------------------------------------------------------

share() { # share TAG FOLDER OPTIONS
    arguments+=(-fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3")
    arguments+=(-device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}

# no_timer_check: on a busy machine the first ticks may be too late for the kernel, which then gives up.
# Without erms: processors that have it copy by an instruction that the emulation does byte by byte.
# tsc=reliable: the emulation's processors have one clock, but the kernel does not trust those of a processor that
# does not say so, and then each look at the time is an access to the emulated HPET.
# maxcpus: guest.sh starts the other processors. Until then they would mostly wait for each other's locks, and an
# emulated processor that waits takes all of a real one.
kernel=(
    console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable maxcpus=1
    "vm.run=$run" "vm.scripts=$here/vm"
)
arguments=(
    -machine q35 -accel "tcg,thread=multi" -cpu "max,-erms" -smp "$processors" -m "$memory"
    -nodefaults -no-user-config -display none -no-reboot
    -kernel "$vm/vmlinux" -initrd "$vm/initrd.gz"
    -append "${kernel[*]}"
    -serial "file:$run/console"
    -add-fd "fd=3,set=1" -chardev "file,id=out,path=/dev/fdset/1,append=on"
    -add-fd "fd=4,set=2" -chardev "file,id=err,path=/dev/fdset/2,append=on"
    -device virtio-serial
    -device "virtserialport,chardev=out,nr=1" -device "virtserialport,chardev=err,nr=2"
)
share hostroot / ,readonly=on
share run "$run" ''
for i in "${!writable[@]}"; do
    share "write$i" "${writable[i]}" ''
done

status=0
timeout --foreground -k 5 "$limit" qemu-system-x86_64 "${arguments[@]}" 3>&1 4>&2 </dev/null || status=$?
if [[ -f $run/status ]]; then
    exit "$(<"$run/status")"
fi
tail -n 200 "$run/console" >&2 || true
if ((status == 124 || status == 137)); then
    echo "vm: no end after $limit s; above is what its console said last" >&2
    exit 124
fi
fail "the machine ended without a result (qemu: $status); above is what its console said last"
