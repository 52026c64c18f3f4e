"""FIELD
source: own
mechanism: each optimizer step is many micro-batches that the host launches at once and then waits seconds for in .item(); a line a minute; a thread waits for a stop request and a child process waits for lines to store, both silent by design
needs: gpu
ranks: 1
onset: printed
state: healthy
cause: gpu_bound
blame: none
twin: none
"""
import os, subprocess, sys, tempfile, threading, time
import torch, torch.nn as nn

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
WIDTH, TOKENS, MICRO, EVERY = (128, 64, 8, 50) if cpu else (4096, 16384, 24, 25)

STORE = "import sys\nwith open(sys.argv[1], 'w') as out:\n    for line in sys.stdin:\n        out.write(line); out.flush()\n"

class Autoencoder(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.mask = nn.Parameter(torch.zeros(WIDTH))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(depth))
    def forward(self, x, hidden):
        h = torch.where(hidden, self.mask, x)
        for layer in self.layers:
            h = h + layer(h)
        return h

def main():
    folder = tempfile.mkdtemp(prefix='mae_')
    store = subprocess.Popen([sys.executable, '-c', STORE, os.path.join(folder, 'run.log')], stdin=subprocess.PIPE, text=True)
    stop = threading.Event()
    threading.Thread(target=lambda: (stop.wait(), print('stop requested', flush=True)), daemon=True, name='stop-request').start()
    torch.manual_seed(0)
    model = Autoencoder().to(dev, torch.float32 if cpu else torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
    dtype = next(model.parameters()).dtype
    begun = time.time()
    for step in range(10**9):
        total = torch.zeros((), device=dev)
        for _ in range(MICRO):
            x = torch.randn(TOKENS, WIDTH, device=dev, dtype=dtype)
            hidden = torch.rand(TOKENS, 1, device=dev) < 0.75
            loss = ((model(x, hidden) - x).float().pow(2) * hidden).mean() / MICRO
            loss.backward()
            total += loss.detach()
        opt.step(); opt.zero_grad(set_to_none=True)
        value = total.item()
        if step == 3: print('ONSET', flush=True)
        if step % EVERY == 0:
            print(f'{time.time() - begun:.0f} s step {step} loss {value:.4f}', flush=True)
            store.stdin.write(f'{step}\t{value}\n'); store.stdin.flush()
        if time.time() - begun > 700 or stop.is_set():
            break
    store.stdin.close()
    store.wait()

if __name__ == '__main__':
    main()
