"""FIELD
source: own
mechanism: the thread that writes the metrics died of a record that json cannot write; the bounded queue fills up and the training thread waits in put for ever
needs: gpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: record (tabular_log.py)
twin: none
"""
import json, os, queue, signal, tempfile, threading, time
import torch, torch.nn as nn

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda:0')


class Journal:
    def __init__(self, path):
        self.rows, self.full_seen = queue.Queue(maxsize=256), False
        self.file = open(path, 'w')
        self.thread = threading.Thread(target=self.write_rows, name='journal', daemon=True)
        self.thread.start()

    def write_rows(self):
        while True:
            row = self.rows.get()
            self.file.write(json.dumps(row) + '\n')
            self.file.flush()

    def record(self, **row):
        if self.rows.full() and not self.full_seen:
            self.full_seen = True
            print('ONSET', flush=True)
        self.rows.put(row)


width, rows = (64, 256) if cpu else (4096, 8192)
net = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)).to(dev, torch.bfloat16)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
journal = Journal(os.path.join(tempfile.mkdtemp(prefix='tabular-'), 'metrics.jsonl'))
x, y = torch.randn(rows, width, device=dev, dtype=torch.bfloat16), torch.randn(rows, 1, device=dev, dtype=torch.bfloat16)
start, best = time.time(), float('inf')
for step in range(10**9):
    loss = nn.functional.mse_loss(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    value = loss.item()
    journal.record(step=step, loss=value, seconds=round(time.time() - start, 3))
    if time.time() - start > 8 and value < best:                # late in training: keep the best, with its gradient norm
        best = value
        norm = torch.stack([p.grad.float().norm() for p in net.parameters()]).norm()
        journal.record(step=step, best=value, grad_norm=norm)
    if step % 200 == 0: print(f'step {step} loss {value:.4f}', flush=True)
