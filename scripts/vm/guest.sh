#!/bin/bash
# Runs inside the virtual machine, as its process 1: sets it up, runs the job that vm.sh left in the
# run folder, leaves its exit status there and switches the machine off.
run=$1
scripts=$(dirname "$0")
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# libfabric reads all of it in each process, which takes an emulated processor most of a second.
mount --bind /dev/null /proc/kallsyms
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
ln -sf /proc/self/fd /dev/fd
ln -sf fd/0 /dev/stdin
ln -sf fd/1 /dev/stdout
ln -sf fd/2 /dev/stderr
tag=0
while IFS= read -r -d '' folder; do
    mkdir -p "$folder"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,rw,cache=none "write$((tag++))" "$folder"
done <"$run/writable"

devices='' vm='' limit=0
# shellcheck source=/dev/null
source "$run/settings"
source "$scripts/devices.sh"
# Over what the host has there, which may be modules of the same version without these devices.
mkdir -p /lib/modules
mount --bind "$vm/root/lib/modules" /lib/modules
# Open MPI starts no job on a machine without a name.
echo vm >/proc/sys/kernel/hostname
# Of rdma-core's drivers those of the devices that are here: each process that looks for devices loads all of them.
find /etc/libibverbs.d -name '*.driver' ! -name siw.driver ! -name rxe.driver -delete
# The processors that wait since the start, see vm.sh. siw and rxe have threads and queues for each that runs.
for processor in /sys/devices/system/cpu/cpu[1-9]*/online; do
    echo 1 >"$processor"
done
ulimit -l unlimited
ulimit -n 65536

# If the command takes long: the threads, and where those that wait in the kernel wait.
{
    sleep $((limit * 3 / 4))
    ps -N --ppid 2 -Lo pid,lwp,stat,time,wchan:20,args | cut -c -160
    dmesg -n debug
    echo w >/proc/sysrq-trigger
} >/dev/console 2>&1 &

# A port can be opened once; behind a pipe the job may open /dev/stdout as often as it likes.
mkfifo /run/stdout /run/stderr
cat /run/stdout >/dev/vport0p1 &
drains=("$!")
cat /run/stderr >/dev/vport0p2 &
drains+=("$!")
{
    # shellcheck disable=SC2086 # they are words
    if set_up_devices $devices >&2; then
        setsid bash "$run/job" </dev/null
        status=$?
    else
        echo "vm: the devices could not be set up" >&2
        status=125
    fi
} >/run/stdout 2>/run/stderr
# What the job left running may hold the pipes open: it does not hold up the end.
for _ in {1..50}; do
    kill -0 "${drains[@]}" 2>/dev/null || break
    sleep 0.1
done
echo "$status" >"$run/status"
sync
echo o >/proc/sysrq-trigger
sleep 60
