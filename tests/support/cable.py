#!/usr/bin/env python3
"""A slow and lossy cable in user space, for kernels without tc's netem.

cable.py LINK BRIDGE NEAR FAR DELAY_MS LOSS_PERCENT KBIT

Takes the device LINK out of BRIDGE, puts NEAR of a new veth pair in its place, and carries frames between FAR and
LINK: each DELAY_MS late, at most KBIT kilobit a second each way (0: as fast as it goes), LOSS_PERCENT of them lost.
Says "ready" when it carries; puts everything back when it is told to end.
"""
import collections, random, select, signal, socket, struct, subprocess, sys, time

link, bridge, near, far = sys.argv[1:5]
delay, loss, rate = float(sys.argv[5]) / 1000, float(sys.argv[6]) / 100, float(sys.argv[7]) * 1000 / 8
BACKLOG = 0.5  # seconds of frames that a slow cable holds before it drops them
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_VNET_HDR, PACKET_OUTGOING = 263, 1, 15, 4
SO_RCVBUFFORCE = 33


def ip(*words, check=True):
    subprocess.run(["ip", "link", *words], check=check, stderr=None if check else subprocess.DEVNULL)


def tap(name):
    """Every frame of a device, with its segmentation header: the kernel hands over more than one MTU at once."""
    with open(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore", "w") as file:
        file.write("8")  # this end of the cable is nobody
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    s.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("IHH8s", socket.if_nametoindex(name), 1, 0, b""))
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    s.bind((name, 0))
    s.setblocking(False)
    return s


class Way:
    """One direction."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.queue, self.free = collections.deque(), 0.0

    def take(self, now):
        for _ in range(64):
            try:
                frame, origin = self.source.recvfrom(1 << 17)
            except OSError:  # nothing there, or the link is down
                return
            if origin[2] == PACKET_OUTGOING or (loss and chance.random() < loss):
                continue
            due = max(now, self.free)
            if rate:
                if due - now > BACKLOG:
                    continue
                due += len(frame) / rate
            self.free = due
            self.queue.append((due + delay, frame))

    def give(self, now):
        while self.queue and self.queue[0][0] <= now:
            try:
                self.target.send(self.queue[0][1])
            except BlockingIOError:
                return
            except OSError:  # the link is down: a frame in a cut cable is lost
                pass
            self.queue.popleft()


def end(*_):
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
chance = random.Random(1)
ip("add", near, "type", "veth", "peer", "name", far)
try:
    ip("set", link, "nomaster")
    a, b = tap(link), tap(far)
    ip("set", far, "up")
    ip("set", near, "master", bridge, "up")
    ways = [Way(a, b), Way(b, a)]
    poll = select.poll()
    poll.register(a, select.POLLIN)
    poll.register(b, select.POLLIN)
    print("ready", flush=True)
    while True:
        due = [way.queue[0][0] for way in ways if way.queue]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        if wait is not None and wait < 0.001:
            time.sleep(wait)
            poll.poll(0)
        else:
            poll.poll(None if wait is None else int(wait * 1000))
        now = time.monotonic()
        for way in ways:
            way.take(now)
            way.give(now)
finally:
    ip("del", near, check=False)
    ip("set", link, "master", bridge, check=False)
