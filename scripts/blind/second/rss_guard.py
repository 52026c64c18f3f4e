"""FIELD
source: own
mechanism: the memory guard of rank 1 parks its process with SIGSTOP when it has grown past the limit, so that somebody may look at it; nobody does, and rank 0 waits for rank 1 in the all-reduce
needs: cpu
ranks: 2
onset: printed
state: hung
cause: stopped, stalled_collective
blame: rank 1
twin: none
"""
import datetime, os, signal, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def resident_mib():
    with open('/proc/self/statm') as src:
        return int(src.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') >> 20

class MemoryGuard:
    def __init__(self, allowance):
        self.limit = resident_mib() + allowance

    def check(self, step):
        used = resident_mib()
        if used > self.limit:
            print(f'step {step}: {used} MiB in use, limit {self.limit}; parked, SIGCONT to go on', flush=True)
            print('ONSET', flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            self.limit = 2 * used

def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 64)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = MemoryGuard(allowance=160)
    probes = []                                   # activations of the probe set, for the drift plot
    for step in range(10**9):
        x = torch.randn(64, 64)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if rank == 1 and step % 2 == 0:
            with torch.no_grad():
                probes.append(model.module[:4](torch.randn(512, 64)))
        guard.check(step)
        time.sleep(0.01)
        if step % 50 == 0 and rank == 0: print(f'step {step} loss {loss.item():.4f}', flush=True)

if __name__ == '__main__':
    main()
