"""What the drills of several ranks share: how they meet, and on which device they train.

Imported by the programs by path, like ``stage``.
"""

import fcntl
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def width(device, small):
    """How wide a layer must be to keep the device busy: ``small`` on a CPU core, thousands on a card."""
    return small if device.type == "cpu" else 8192


def rows(device, wide):
    """How many rows a batch must have for computing to take far longer than gradients do to travel, on any CPU."""
    return 6 * wide if device.type == "cpu" else wide


def wait_for_turn():
    """Where PERFWATCH_DRILL_TURN names a file, only one drill at a time goes on to its cards; imports need not wait."""
    gate = os.environ.get("PERFWATCH_DRILL_TURN")
    if not gate:
        return
    begun = f"{gate}.{os.environ['MASTER_PORT']}"
    if os.environ["LOCAL_RANK"] == "0":
        fcntl.flock(os.open(gate, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)  # held until this process ends
        open(begun, "w").close()
    while not os.path.exists(begun):
        time.sleep(0.02)


def share_cards(place, cards):
    """Let NCCL take this rank for one of another host: it refuses two of a host on one card, and hosts talk over sockets."""
    os.environ |= {"NCCL_HOSTID": f"host-{place // cards}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}


def join(args):
    """Meet the other ranks over ``--backend``; give the device. With NCCL each rank has a card of its own, or shares one."""
    if args.backend == "gloo":
        seconds = os.environ.get("PERFWATCH_DRILL_TIMEOUT")  # gloo's own, half an hour by default
        dist.init_process_group("gloo", timeout=None if seconds is None else timedelta(seconds=float(seconds)))
        return torch.device("cpu")
    wait_for_turn()
    place, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    count = int(
        os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    )  # ranks that are started by hand may lack it
    if 0 < cards < count and os.environ.get("PERFWATCH_DRILL_SHARE_CARDS") == "1":
        share_cards(place, cards)
    elif cards <= place:
        sys.exit(f"rank {place} has no GPU: this machine has {cards}")
    device = torch.device("cuda", place % cards)
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl", device_id=device)
    return device
