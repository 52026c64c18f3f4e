"""Ranks that come apart in their collectives; the scenes whose names Ray Train's tests of its hang detector give.

torchrun --nproc-per-node 2 scenes.py SCENE        straggler, dead, skew, mismatch, shape, healthy
torchrun --nproc-per-node 4 scenes.py subset       two groups of two; one card may hold several ranks (as several hosts)
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

CARD = torch.cuda.is_available()
SIZE = 64 << 20 if CARD else 1 << 16
APART, STEPS, DIES, PAUSE = 8, 16, 28, 0.5
ENDING = ("skew", "shape", "mismatch")  # whether their cards ever finish is seen at the end


def join() -> tuple[int, int, torch.device]:
    """Meet; rank, ranks, device."""
    local, count = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    if not CARD:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        return dist.get_rank(), count, torch.device("cpu")
    cards = torch.cuda.device_count()
    if cards < count:
        os.environ |= {"NCCL_HOSTID": f"host-{local // cards}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    device = torch.device("cuda", local % cards)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(minutes=30), device_id=device)
    return dist.get_rank(), count, device


def say(word: str) -> None:
    """On a line of its own."""
    os.write(1, f"\n{word}\n".encode())


def stay() -> None:
    """Alive, and in no collective any more."""
    while True:
        time.sleep(30)


def main() -> None:
    """One scene."""
    scene = sys.argv[1]
    rank, count, device = join()
    group = None
    if scene == "subset":
        halves = [dist.new_group(list(range(at, at + count // 2))) for at in (0, count // 2)]
        dist.all_reduce(torch.ones(SIZE, device=device))
        group = halves[rank >= count // 2]
    last = count - 1
    steps = STEPS if scene in ENDING else 10**6
    for step in range(steps):
        apart = step >= APART
        if step == 2 and rank == 0:
            say("READY")
        if step == APART and rank == 0 and scene == "healthy":
            say("ONSET")
        if step == APART and rank == last and scene in ("straggler", "subset"):
            say("ONSET")
            stay()
        if step == DIES and rank == last and scene == "dead":
            say("ONSET")
            os._exit(1)
        if scene == "mismatch" and apart and rank == last:
            gathered = [torch.empty(SIZE, device=device) for _ in range(count)]
            dist.all_gather(gathered, torch.ones(SIZE, device=device))
        else:
            own = 2 * SIZE if scene == "shape" and apart and rank == 0 else SIZE
            dist.all_reduce(torch.ones(own, device=device), group=group)
        if scene == "skew" and step == APART and rank == 0:
            dist.all_reduce(torch.ones(SIZE, device=device))
        print(f"rank {rank} reports step {step}", flush=True)
        time.sleep(PAUSE)
    if rank == 0:
        say("ONSET")
    if CARD:
        torch.cuda.synchronize()
    print(f"rank {rank} is done", flush=True)
    if scene in ENDING:
        time.sleep(120)  # as a worker that its launcher keeps


if __name__ == "__main__":
    main()
