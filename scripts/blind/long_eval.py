"""FIELD
source: huggingface/accelerate#3861 (validation on the main process; the others wait in a barrier, there until the timeout)
mechanism: after some training rank 0 evaluates for about seven minutes while the other ranks wait in the barrier; then the training goes on
needs: cpu
ranks: 3
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: evaluate (long_eval.py)
twin: none
"""
import datetime, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
EVAL_BUDGET = 420           # seconds


def batches(seed, size):
    gen = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(size, 3, 28, 28, generator=gen)
        yield x, x.mean((2, 3)).argmax(1)


@torch.no_grad()
def evaluate(model, budget):
    model.eval()
    seen = hits = 0
    begun = time.monotonic()
    for x, y in batches(12345, 200):
        views = [x, x.flip(3), x.roll(2, 2), x.roll(-2, 3)]
        scores = sum(model(view).softmax(1) for view in views)
        hits += (scores.argmax(1) == y).sum().item()
        seen += len(x)
        if seen % 2000 == 0:
            print(f'  evaluated {seen}: accuracy {hits / seen:.4f}', flush=True)
        if time.monotonic() - begun > budget:
            break
    model.train()
    return hits / seen


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 144, 3)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    train = batches(rank, 24)
    for epoch in range(2):
        for step in range(200):
            x, y = next(train)
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 0 and rank == 0:
                print(f'epoch {epoch} step {step} loss {loss.item():.4f}', flush=True)
        if rank == 0 and epoch == 0:
            print('evaluating with augmentation\nONSET', flush=True)
            print(f'accuracy {evaluate(model.module, EVAL_BUDGET):.4f}', flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
