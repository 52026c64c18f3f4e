"""FIELD
source: own (compare pytorch/pytorch#109401 and pytorch/pytorch#172668, pipeline stages that wait for each other's send)
mechanism: a batch that the micro-batch does not divide: stage 0 sends the whole micro-batches only, stage 1 expects one more; both wait in a receive
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: none
"""
import datetime, os, signal, time
import torch, torch.nn as nn, torch.distributed as dist

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank = int(os.environ['RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
if not cpu: torch.cuda.set_device(dev)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
d, micro = (32, 8) if cpu else (4096, 1024)


def stack(n):
    return nn.Sequential(*[m for _ in range(n) for m in (nn.Linear(d, d), nn.GELU())])


class FirstStage:
    def __init__(self):
        self.net = stack(4).to(dev)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self, rows):
        x = torch.randn(rows, d, device=dev)
        acts = []
        for i in range(rows // micro):
            with torch.autocast(dev.type, torch.bfloat16):
                act = self.net(x[i * micro:(i + 1) * micro])
            acts.append(act.float())
            dist.send(acts[-1].detach().contiguous(), 1)
        for act in acts:
            grad = torch.empty_like(act)
            dist.recv(grad, 1)
            act.backward(grad)
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0).item()
        self.opt.step(); self.opt.zero_grad()
        return norm


class LastStage:
    def __init__(self):
        self.net = nn.Sequential(stack(4), nn.Linear(d, 16)).to(dev)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self, rows):
        ins, losses = [], []
        for i in range(-(-rows // micro)):
            act = torch.empty(min(micro, rows - i * micro), d, device=dev)
            dist.recv(act, 0)
            ins.append(act.requires_grad_())
            with torch.autocast(dev.type, torch.bfloat16):
                out = self.net(act)
            losses.append(out.float().logsumexp(-1).mean())
        for act, loss in zip(ins, losses):
            loss.backward()
            dist.send(act.grad.contiguous(), 0)
        value = torch.stack(losses).mean().item()
        self.opt.step(); self.opt.zero_grad()
        return value


stage = FirstStage() if rank == 0 else LastStage()
for _ in range(5): stage.step(4 * micro)
began = time.time()
for _ in range(20): stage.step(4 * micro)
t = torch.tensor([(time.time() - began) / 20], device=dev)
dist.broadcast(t, 0)
documents = (max(20, int(8 / t.item())) * 4) * micro + micro // 2 + micro       # one epoch of about eight seconds
for epoch in range(10**6):
    done = 0
    while done < documents:
        rows = min(4 * micro, documents - done)
        if rows < 4 * micro and rank == 0: print(f'epoch {epoch}: last batch of {rows}\nONSET', flush=True)
        value = stage.step(rows)
        done += rows
        if done // (4 * micro) % 40 == 0: print(f'rank {rank} epoch {epoch} rows {done} value {value:.4f}', flush=True)
