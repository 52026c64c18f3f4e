"""FIELD
source: huggingface/accelerate#3861 (NCCL timeout for validation)
mechanism: only the main process validates, and the metric reduces its counts over a group of all ranks; rank 1 goes on to the next step and waits in the gradient all-reduce
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: compute (main_eval.py), validate (main_eval.py)
twin: none
"""
import datetime, os, signal, time
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
local = int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device(f'cuda:{local}')
if not cpu: torch.cuda.set_device(dev)
patience = datetime.timedelta(minutes=40)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=patience, device_id=None if cpu else dev)
metric_group = dist.new_group([0, 1], timeout=patience)
is_main = dist.get_rank() == 0
side, c, batch = (16, 8, 8) if cpu else (64, 128, 256)


class Accuracy:
    def __init__(self):
        self.counts = torch.zeros(2, device=dev)

    def update(self, logits, labels):
        self.counts += torch.stack([(logits.argmax(1) == labels).sum(), torch.tensor(len(labels), device=dev)])

    def compute(self):
        dist.all_reduce(self.counts, group=metric_group)
        right, seen = self.counts.tolist()
        return right / seen


def batches(n):
    for _ in range(n):
        yield torch.randn(batch, 3, side, side, device=dev), torch.randint(0, 10, (batch,), device=dev)


@torch.no_grad()
def validate(net, n):
    net.eval()
    accuracy = Accuracy()
    for x, y in batches(n):
        accuracy.update(net(x), y)
    net.train()
    return accuracy.compute()


torch.manual_seed(7)
net = nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                    nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * c, 10)).to(dev)
ddp = DDP(net, device_ids=None if cpu else [local])
opt = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)
torch.manual_seed(dist.get_rank())
print(f'sanity check: accuracy {validate(net, 4):.3f}', flush=True)
began, every = time.time(), None
step = 0
while True:
    for x, y in batches(20):
        loss = F.cross_entropy(ddp(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
        value = loss.item()
        step += 1
        if step == 40: began = time.time()
        if step == 80:                                              # about ten seconds between validations
            t = torch.tensor([(time.time() - began) / 40], device=dev)
            dist.all_reduce(t, op=dist.ReduceOp.MAX)
            every = 80 + 20 * max(1, int(9 / t.item() / 20))
        if is_main and step % 40 == 0: print(f'step {step} loss {value:.4f}', flush=True)
    if every and step % every == 0 and is_main:
        print('validating\nONSET', flush=True)
        print(f'step {step} accuracy {validate(net, 20):.3f}', flush=True)
