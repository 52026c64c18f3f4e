"""FIELD
source: own
mechanism: both ranks train without a break; on rank 1 a thread waits all the time in a receive of the gloo group for a stop message that comes only at the end, as intended
needs: gpu2
ranks: 2
onset: printed
state: healthy
cause: gpu_bound, balanced
blame: none
twin: none
"""
import datetime, os, threading, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

cpu = os.environ.get('FIELD_CPU') == '1'
TOTAL = 720

class StopChannel:
    """Rank 0 decides when to stop; everybody stops at the same step."""
    def __init__(self, rank):
        self.rank, self.last_step = rank, None
        self.group = dist.new_group(backend='gloo', timeout=datetime.timedelta(minutes=40))
        if rank:
            threading.Thread(target=self.listen, daemon=True, name='stop-listener').start()

    def listen(self):
        word = torch.zeros(1, dtype=torch.int64)
        dist.recv(word, 0, group=self.group)
        self.last_step = int(word)

    def announce(self, step):
        self.last_step = step
        for peer in range(1, dist.get_world_size()):
            dist.send(torch.tensor([step]), peer, group=self.group)

class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.b(torch.nn.functional.gelu(self.a(x)))

def main():
    torch.set_num_threads(1)
    rank = int(os.environ['RANK'])
    dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
    if not cpu: torch.cuda.set_device(dev)
    dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
    stop = StopChannel(rank)
    width, batch, depth = (64, 64, 2) if cpu else (4096, 16384, 4)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[Residual(width) for _ in range(depth)]).to(dev))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(rank + 1)
    begun = time.time()
    for step in range(10**9):
        x = torch.randn(batch, width, device=dev)
        with torch.autocast(dev.type, torch.bfloat16):
            loss = (model(x).float() - 0.9 * x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if rank == 0 and step == 12: print('ONSET', flush=True)
        if step % 200 == 0:
            value = loss.item()
            if rank == 0:
                print(f'{time.time() - begun:.0f} s step {step} loss {value:.4f}', flush=True)
                if stop.last_step is None and time.time() - begun > TOTAL:
                    stop.announce(step + 200)
        if stop.last_step is not None and step >= stop.last_step:
            break
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
