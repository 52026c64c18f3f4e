"""FIELD
source: own
mechanism: between two rounds the trainer starts a tool of its own that packs the next part of the corpus (xz, some five minutes of CPU and a growing file) and waits for it to end
needs: cpu
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import lzma, os, shutil, subprocess, sys, tempfile, time
import numpy as np
import torch, torch.nn as nn

def pack(path, seconds):
    rng = np.random.default_rng(7)
    until = time.time() + seconds
    with lzma.open(path, 'wb', preset=6) as out:
        while time.time() < until:
            words = rng.zipf(1.3, 200_000) % 50_000
            out.write(words.astype('<u2').tobytes())

def read_packed(path, limit=4_000_000):
    with lzma.open(path) as src:
        return torch.from_numpy(np.frombuffer(src.read(limit), dtype='<u2').astype(np.int64))

class Bigram(nn.Module):
    def __init__(self, vocab=50_000, width=32):
        super().__init__()
        self.emb, self.mid, self.out = nn.Embedding(vocab, width), nn.Linear(width, 128), nn.Linear(128, 256)
    def forward(self, ids):
        return self.out(torch.relu(self.mid(self.emb(ids))))

def train(model, opt, ids, seconds):
    until, step = time.time() + seconds, 0
    while time.time() < until:
        at = torch.randint(0, len(ids) - 1, (256,))
        loss = nn.functional.cross_entropy(model(ids[at]), ids[at + 1] % 256)
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 100 == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
        step += 1

def main():
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix='corpus_')
    model = Bigram()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    part = os.path.join(folder, 'part0.xz')
    try:
        pack(part, 1)
        for number, seconds in enumerate((330, 1), start=1):
            train(model, opt, read_packed(part), 10 if number == 1 else 40)
            part = os.path.join(folder, f'part{number}.xz')
            if number == 1:
                print('ONSET', flush=True)
            subprocess.run([sys.executable, os.path.abspath(__file__), 'pack', part, str(seconds)], check=True)
        train(model, opt, read_packed(part), 20)
    finally:
        shutil.rmtree(folder)

if __name__ == '__main__':
    if sys.argv[1:2] == ['pack']:
        pack(sys.argv[2], float(sys.argv[3]))
    else:
        main()
