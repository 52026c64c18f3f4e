"""FIELD
source: https://github.com/python/cpython/issues/87634 (one lock around a long computation, needed by others for an instant: high contention)
mechanism: a thread that exports percentiles sorts the whole history while it holds the lock that the training thread needs for an instant in each step
needs: cpu
ranks: 1
onset: printed
state: slow
cause: contended_lock
blame: export (exporter_stats.py)
twin: none
"""
import json, os, tempfile, threading, time
import numpy as np
import torch, torch.nn as nn

torch.set_num_threads(1)

class RunStats:
    def __init__(self, size):
        self.guard = threading.Lock()
        self.history = np.random.default_rng(0).lognormal(size=size).astype(np.float32)
        self.at = 0

    def update(self, norms):
        with self.guard:
            n = len(norms)
            self.history[self.at:self.at + n] = norms
            self.at = (self.at + n) % (len(self.history) - 64)

    def export(self, path):
        with self.guard:
            ordered = np.sort(self.history)
            table = {f'p{q}': float(ordered[int(q / 100 * (len(ordered) - 1))]) for q in range(0, 101)}
        with open(path, 'w') as out:
            json.dump(table, out)

def serve(stats, path):
    while True:
        stats.export(path)
        time.sleep(0.03)

def main():
    stats = RunStats(4_000_000)
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 128), nn.GELU())], nn.Linear(128, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    begun, exporting = time.time(), False
    folder = tempfile.mkdtemp(prefix='stats_')
    step = 0
    while time.time() - begun < 700:
        x = torch.randn(64, 128)
        loss = nn.functional.huber_loss(model(x), x.norm(dim=1, keepdim=True))
        opt.zero_grad(); loss.backward()
        stats.update([p.grad.norm().item() for p in model.parameters()])
        opt.step()
        step += 1
        if step % 100 == 0:
            print(f'{time.time() - begun:.0f} s step {step} loss {loss.item():.4f}', flush=True)
        if not exporting and time.time() - begun > 8:
            exporting = True
            threading.Thread(target=serve, args=(stats, os.path.join(folder, 'norms.json')), name='exporter', daemon=True).start()
            print('ONSET', flush=True)

if __name__ == '__main__':
    main()
