"""A switch in user space that is slow and loses packets: for kernels without netem.

``python tests/slow.py MILLISECONDS PERCENT BITS DEVICE DEVICE...`` passes on the frames of each
device to the others, until it is killed; needs root. Each device sends and receives at BITS a
second, without a bound if that is 0. ``python tests/slow.py DEVICE`` has a device send only frames
of the length that a cable has, so that what is lost is one of them.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import random
import select
import socket
import struct
import sys
import time

_ALL = 0x0003  # every protocol (linux/if_ether.h)
_SOL_PACKET, _VNET_HDR, _IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
_RCVBUFFORCE = 33  # asm-generic/socket.h
_SIOCETHTOOL = 0x8946
#: Checksums and segments that a device would leave to its hardware (linux/ethtool.h).
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)
#: Bytes of struct virtio_net_hdr: what was left to the hardware goes along with a frame.
_HEADER = 10


def plain(device: str) -> None:
    """Have a device leave nothing to its hardware."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
            request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(asked, _SIOCETHTOOL, request)


def relay(names: list[str], seconds: float, loss: float, rate: float) -> None:
    """Pass on the frames of some devices.

    Args:
        names: of the devices.
        seconds: that each frame is under way.
        loss: the share of frames that are lost.
        rate: bytes a second of each device, in each direction.
    """
    ends = [_opened(name) for name in names]
    owners: dict[bytes, socket.socket] = {}  # by the address that a frame came from
    sent, received = dict.fromkeys(ends, 0.0), dict.fromkeys(ends, 0.0)
    under_way: list[tuple[float, int, socket.socket, bytes]] = []
    numbers = itertools.count()
    print("ready", flush=True)
    while True:
        left = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], left)[0]:
            frame = end.recv(1 << 17)
            address = _HEADER + 6
            owners[frame[address : address + 6]] = end
            if random.random() < loss:
                continue
            takes = (len(frame) - _HEADER) / rate
            sent[end] = max(sent[end], time.monotonic()) + takes
            known = owners.get(frame[_HEADER:address])
            for target in ends if known is None else (known,):
                if target is not end:
                    received[target] = max(sent[end], received[target] + takes)
                    due = received[target] + seconds
                    heapq.heappush(under_way, (due, next(numbers), target, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(under_way)
            try:
                target.send(frame)
            except OSError as error:  # the device is gone, or the frame is too long for it
                print(error, len(frame), file=sys.stderr, flush=True)


def _opened(name: str) -> socket.socket:
    """Return a socket that has the frames which come to a device."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 24)
    end.bind((name, _ALL))
    return end


if __name__ == "__main__":
    if len(sys.argv) == 2:
        plain(sys.argv[1])
    else:
        bits = float(sys.argv[3])
        relay(
            sys.argv[4:],
            float(sys.argv[1]) / 1000,
            float(sys.argv[2]) / 100,
            bits / 8 if bits else float("inf"),
        )
