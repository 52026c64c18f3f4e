"""FIELD
source: own (a guard that pauses a loader worker by SIGSTOP above a memory budget and resumes it below)
mechanism: the worker of rank 1 keeps the rows that it decoded, so its memory never falls below the budget again and nothing resumes it; rank 1 waits for its batch and rank 0 in the all-reduce
needs: cpu
ranks: 2
onset: printed
state: hung
cause: stopped
blame: rank 1
twin: none
"""
import datetime, os, signal, threading, time
import torch, torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
BUDGET_MB = 160


def memory_mb(pid):
    with open(f'/proc/{pid}/status') as status:
        for line in status:
            if line.startswith('RssAnon'):
                return int(line.split()[1]) / 1024
    return 0


class MemoryGuard(threading.Thread):
    """Pauses a worker while it is above its budget."""
    def __init__(self, rank, pids):
        super().__init__(name='memory-guard', daemon=True)
        self.rank, self.base, self.paused = rank, {pid: memory_mb(pid) for pid in pids}, set()

    def run(self):
        while True:
            time.sleep(0.5)
            for pid, base in self.base.items():
                used = memory_mb(pid) - base
                if used > BUDGET_MB and pid not in self.paused:
                    print(f'rank {self.rank}: worker uses {used:.0f} MB\nONSET', flush=True)
                    os.kill(pid, signal.SIGSTOP)
                    self.paused.add(pid)
                elif used < 0.8 * BUDGET_MB and pid in self.paused:
                    os.kill(pid, signal.SIGCONT)
                    self.paused.discard(pid)


class Decoder(IterableDataset):
    def __init__(self, rank):
        self.keep, self.gen, self.kept = rank == 1, torch.Generator().manual_seed(rank), []

    def __iter__(self):
        while True:
            image = torch.rand(48, 3, 24, 24, generator=self.gen)
            if self.keep:
                self.kept.append(image.clone())
            yield image, (image.mean((1, 2, 3)) > 0.5).long()


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = iter(DataLoader(Decoder(rank), batch_size=None, num_workers=1, prefetch_factor=4))
    next(batches)
    MemoryGuard(rank, [w.pid for w in batches._workers]).start()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 121, 64), nn.ReLU(), nn.Linear(64, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, (x, y) in zip(range(100000), batches):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
        if step % 50 == 0 and rank == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)


if __name__ == '__main__':
    main()
