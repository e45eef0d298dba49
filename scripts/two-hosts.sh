#!/usr/bin/env bash
# Runs a command on a host "one" that has a network with a host "two". Both are made for it: they have names,
# interfaces and addresses of their own, and the files of this machine. REMOTE becomes a program that runs a command
# on a host, as rsh does: "REMOTE HOST COMMAND...".
#
#   scripts/two-hosts.sh [--lossy LOSS DELAY] REMOTE COMMAND...
#
#   --lossy  the network loses this share of the packets, and each takes so many milliseconds (scripts/lossy-link.py)
set -euo pipefail

if [[ $1 != --inside ]]; then
    self=$(realpath "$0")
    exec "$(dirname "$self")/isolated.sh" unshare --uts "$self" --inside "$@"
fi
shift
link=()
if [[ $1 == --lossy ]]; then
    link=("$2" "$3")
    shift 3
fi
remote=$1
shift

# Its processes have small numbers, which those of the next run have too: what is named after them is not shared.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

hostname one
unshare --net --uts sleep infinity &
far=$!
until [[ $(cat "/proc/$far/comm") == sleep ]]; do
    sleep 0.01
done
on_two() {
    nsenter -t "$far" --net --uts "$@"
}
on_two hostname two
if ((${#link[@]} > 0)); then
    : >"$TMPDIR/link"
    "$(dirname "$0")/lossy-link.py" net0 far0 "${link[@]}" >"$TMPDIR/link" &
    until grep -q ready "$TMPDIR/link"; do
        sleep 0.01
    done
    ip link set far0 netns "$far" name net0
else
    ip link add net0 type veth peer name net0 netns "$far"
fi
ip address add 10.77.0.1/24 dev net0
on_two ip address add 10.77.0.2/24 dev net0
on_two ip link set lo up
for on in '' on_two; do
    $on ip link set net0 up
done
for on in '' on_two; do
    until $on ip link show net0 | grep -q 'LOWER_UP'; do
        sleep 0.01
    done
done

printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 one' '10.77.0.2 two' >"$remote.hosts"
mount --bind "$remote.hosts" /etc/hosts
cat >"$remote" <<END
#!/usr/bin/env bash
host=\$1
shift
case \$host in
    one) exec bash -c "\$*" ;;
    two) exec nsenter -t $far --net --uts bash -c "\$*" ;;
    *) echo "no host \$host" >&2; exit 1 ;;
esac
END
chmod +x "$remote"
"$@"
