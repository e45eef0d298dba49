#!/usr/bin/env python3
"""Links two network interfaces that it makes, as a network that loses packets, delays them and swaps some does.

    scripts/lossy-link.py NAME OTHER LOSS DELAY

LOSS is the share of packets that are lost, from 0 to 1, and DELAY the milliseconds that each takes. One packet in
200 takes half as long again, so later ones overtake it. Prints "ready" when both interfaces are there, and forwards
until it is ended. The choices are the same in each run with the same packets.
"""

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

# From linux/if_tun.h: the request to make an interface, of IP packets without a header of their own.
TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
PACKET_MOST = 65536


def interface(name):
    """The descriptor of a new interface."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def forward(ends, loss, delay):
    choose = random.Random(1)
    order = itertools.count()
    under_way = []
    while True:
        wait = max(0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], wait)[0]:
            try:
                packet = os.read(end, PACKET_MOST)
            except BlockingIOError:
                continue
            if choose.random() >= loss:
                late = 1.5 if choose.random() < 0.005 else 1
                other = ends[1 - ends.index(end)]
                heapq.heappush(under_way, (time.monotonic() + delay * late, next(order), other, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(under_way)
            try:
                os.write(end, packet)
            except OSError:
                # The interface is down or its queue is full: lost as well.
                pass


def main():
    near, far, loss, delay = sys.argv[1:]
    ends = [interface(near), interface(far)]
    print("ready", flush=True)
    forward(ends, float(loss), float(delay) / 1000)


main()
