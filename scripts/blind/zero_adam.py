"""FIELD
source: pytorch/ignite#2623 and Project-MONAI/MONAI#4723 (consolidate_state_dict of ZeroRedundancyOptimizer has to be called on all ranks, but the checkpoint handler runs on rank 0)
mechanism: rank 0 alone consolidates the sharded optimizer state for its checkpoint and waits for the broadcast of rank 1, which is in the gradient all-reduce of the next step
needs: cpu
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: none
"""
import datetime, os, tempfile
import torch, torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


class CheckpointHandler:
    def __init__(self, every, path):
        self.every, self.path = every, path

    def __call__(self, engine):
        if engine['step'] % self.every or engine['step'] == 0:
            return
        if dist.get_rank() == 0:
            self.save(engine)

    def save(self, engine):
        print(f"saving step {engine['step']}\nONSET", flush=True)
        engine['optimizer'].consolidate_state_dict(to=0)
        torch.save({'model': engine['model'].module.state_dict(), 'optimizer': engine['optimizer'].state_dict()}, self.path)


def run():
    torch.manual_seed(3)
    vocab, width = 800, 128
    model = DDP(nn.Sequential(nn.Embedding(vocab, width), nn.Flatten(), nn.Linear(16 * width, 256), nn.ReLU(), nn.Linear(256, vocab)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    engine = {'model': model, 'optimizer': optimizer, 'step': 0}
    handlers = [CheckpointHandler(300, os.path.join(tempfile.gettempdir(), f'zero_adam-{os.getppid()}.pt'))]
    torch.manual_seed(dist.get_rank())
    while engine['step'] < 100000:
        start = torch.randint(0, vocab, (64, 1))
        seq = (start + 3 * torch.arange(17)) % vocab
        loss = nn.functional.cross_entropy(model(seq[:, :16]), seq[:, 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if engine['step'] % 50 == 0 and dist.get_rank() == 0:
            print('step', engine['step'], 'loss', round(loss.item(), 4), flush=True)
        for handler in handlers:
            handler(engine)
        engine['step'] += 1


if __name__ == '__main__':
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    run()
    dist.destroy_process_group()
