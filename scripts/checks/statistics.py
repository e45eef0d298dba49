"""Checks what rstream-stat said as JSON, on standard input: a line each time."""

import json
import sys


def processes(line):
    return {process["pid"]: process for process in json.loads(line)["processes"]}


def open_connections(server, client):
    """Both ends of three connections that are used, in at least two lines, of which the last has rates."""
    *_, before, last = map(processes, sys.stdin)
    ends = {
        (pid, connection["local"], connection["remote"]): connection
        for pid, process in last.items()
        for connection in process["connections"]
        if connection["path"] == "shm"
    }
    assert len(ends) == 6, ends.keys()
    for (pid, local, remote), connection in ends.items():
        other = ends[server + client - pid, remote, local]
        assert connection["peer"]["pid"] == server + client - pid, connection
        assert connection["peer"]["program"] == last[server + client - pid]["program"], connection
        assert connection["role"] == ("listen" if pid == server else "connect"), connection
        assert other["ring_received_calls"] > 1000 and connection["rate"]["calls"] > 0, connection
        assert connection["window"] == 16384, connection
    for pid, process in last.items():
        assert process["open"] == 3 and process["rate"]["calls"] > 0, process
        assert process["waits"]["sleeps"] >= before[pid]["waits"]["sleeps"], process


def counted(reason, received, sent):
    """So many bytes between two lines, on connections that were on their path for this reason."""
    totals = []
    for line in sys.stdin:
        (process,) = processes(line).values()
        kinds = [kind for kind in process["kinds"] if kind["path"] != "undecided" or kind["reason"]]
        totals.append(
            [
                sum(kind[f"{way}_{what}_bytes"] for kind in kinds for way in ("ring", "tcp") if kind["reason"] == reason)
                for what in ("received", "sent")
            ]
        )
    before, after = totals
    grown = [now - then for now, then in zip(after, before)]
    assert grown == [received, sent], grown


what, *numbers = sys.argv[1:]
numbers = [int(number) for number in numbers]
if what == "open":
    open_connections(*numbers)
else:
    counted({"shared": None, "plain": "the peer does not use rstream"}[what], *numbers)
print("1 passed, 0 failed")
