"""A cable that is slow and loses packets, between two network devices: for kernels without netem.

``python tests/slow.py ONE OTHER MILLISECONDS PERCENT`` passes on the frames of either device to
the other, until it is killed; needs root. ``python tests/slow.py DEVICE`` has a device send only
what is fit for such a cable: whole frames, with their checksums.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import random
import select
import socket
import struct
import sys
import time

_ALL = 0x0003  # every protocol (linux/if_ether.h)
_OUTGOING = 4  # sent by this machine (linux/if_packet.h)
_SIOCETHTOOL = 0x8946
#: Checksums and segments that a device would leave to its hardware (linux/ethtool.h).
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)


def plain(device: str) -> None:
    """Have a device leave nothing to its hardware."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
            request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(asked, _SIOCETHTOOL, request)


def relay(one: str, other: str, seconds: float, loss: float) -> None:
    """Pass on the frames of two devices."""
    ends = []
    for name in (one, other):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        end.bind((name, 0))
        ends.append(end)
    under_way: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    print("ready", flush=True)
    while True:
        left = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], left)[0]:
            frame, where = end.recvfrom(1 << 16)
            if where[2] != _OUTGOING and random.random() >= loss:
                target = ends[1 - ends.index(end)]
                under_way.append((time.monotonic() + seconds, target, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, target, frame = under_way.popleft()
            try:
                target.send(frame)
            except OSError as error:  # the device is gone, or the frame is too long for it
                print(error, len(frame), file=sys.stderr, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        plain(sys.argv[1])
    else:
        relay(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1000, float(sys.argv[4]) / 100)
