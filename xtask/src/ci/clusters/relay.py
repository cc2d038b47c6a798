"""The cable between two machines of the step `clusters`: it delays packets, and loses some.

relay.py PID_A PID_B DELAY_MS LOSS_PERCENT puts a device `cable` into the network namespace of each
process and carries IP packets between the two, in user space: many kernels have no `netem`. Told to
end, it says what it has carried and lost.
"""

import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque

# linux/if_tun.h
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LARGEST_PACKET = 65536


def end_of_cable(name, pid):
    """A device in the namespace of `pid`; what its kernel sends there is read from the file."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "netns", pid, "name", "cable"], check=True)
    return file


class Cable:
    def __init__(self, ends, delay_s, loss):
        self.other = dict(zip(ends, reversed(ends)))
        self.delay_s, self.loss = delay_s, loss
        self.chance = random.Random(1)
        # When each packet arrives, where, and the packet; all take equally long.
        self.under_way = deque()
        self.carried = self.lost = 0

    def carry(self):
        """Waits for what comes next, a packet or the time at which one arrives."""
        wait_s = max(0.0, self.under_way[0][0] - time.monotonic()) if self.under_way else None
        readable, _, _ = select.select(list(self.other), [], [], wait_s)
        for file in readable:
            self.take(file)
        while self.under_way and self.under_way[0][0] <= time.monotonic():
            _, file, packet = self.under_way.popleft()
            self.deliver(file, packet)

    def take(self, file):
        try:
            packet = os.read(file, LARGEST_PACKET)
        except OSError:  # The device is not up yet.
            return
        if self.chance.random() < self.loss:
            self.lost += 1
        else:
            self.under_way.append((time.monotonic() + self.delay_s, self.other[file], packet))

    def deliver(self, file, packet):
        try:
            os.write(file, packet)
            self.carried += 1
        except OSError:  # The other device is not up yet, or its queue is full: lost, as on a wire.
            self.lost += 1


def main():
    pid_a, pid_b, delay_ms, loss_percent = sys.argv[1:]
    ends = [end_of_cable("cable-a", pid_a), end_of_cable("cable-b", pid_b)]
    cable = Cable(ends, float(delay_ms) / 1e3, float(loss_percent) / 100)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("ready", flush=True)
    try:
        while True:
            cable.carry()
    finally:
        print(f"carried {cable.carried} packets, lost {cable.lost}", flush=True)


if __name__ == "__main__":
    main()
