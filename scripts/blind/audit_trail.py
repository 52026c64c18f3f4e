"""FIELD
source: own (a trail of every sample, synced to disk line by line, on rank 0 only)
mechanism: rank 0 writes a line for each sample of each step and calls fsync after it; rank 1 waits for it in the gradient all-reduce
needs: cpu
ranks: 2
onset: printed
state: slow
cause: slow_output, straggling_rank
blame: rank 0
twin: none
"""
import datetime, json, os, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


class Trail:
    def __init__(self, path):
        self.path, self.out = path, open(path, 'w')

    def write(self, step, sample, loss):
        self.out.write(json.dumps({'time': time.time(), 'step': step, 'sample': sample, 'loss': round(loss, 5)}) + '\n')
        self.out.flush()
        os.fsync(self.out.fileno())

    def close(self):
        self.out.close()
        os.remove(self.path)


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(80, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    trail = None
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(1000000):
        x = torch.randn(256, 80)
        losses = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1), reduction='none')
        opt.zero_grad()
        losses.mean().backward()
        opt.step()
        if step == 300 and rank == 0:
            trail = Trail(os.path.join(tempfile.gettempdir(), f'audit_trail-{os.getpid()}.jsonl'))
            print('trail on\nONSET', flush=True)
        if trail:
            for sample, loss in enumerate(losses.tolist()):
                trail.write(step, sample, loss)
        if step % 20 == 0:
            if rank == 0:
                print(f'step {step} loss {losses.mean().item():.4f}', flush=True)
            over = torch.tensor(float(time.monotonic() - begun > 700))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    if trail:
        trail.close()
    dist.destroy_process_group()


main()
