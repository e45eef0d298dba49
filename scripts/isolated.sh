#!/usr/bin/env bash
# Runs a command in a network, among processes and with shared memory of its own: its ports and names meet
# nobody else's, and nothing of it is left when it has ended or was killed. Needs user namespaces, no
# privileges.
#
#   scripts/isolated.sh COMMAND...
set -euo pipefail
exec unshare --user --map-root-user --net --pid --fork --kill-child --mount-proc bash -c '
    ip link set lo up
    mount -t tmpfs tmpfs /dev/shm
    "$@"' - "$@"
