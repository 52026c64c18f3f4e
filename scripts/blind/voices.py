"""FIELD
source: own (custom batch with a pin_memory method, as the PyTorch documentation of memory pinning shows it; see also pytorch/pytorch#24927)
mechanism: batches go through a fixed pool of pinned buffers; a skipped batch never gives its buffer back, and in the end the pinning thread waits for a free one for ever
needs: gpu
ranks: 1
onset: printed
state: hung
cause: stuck_pin_memory, deadlocked_locks
blame: take (voices.py)
twin: none
"""
import os, queue, signal
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
bands, frames, batch_size, buffers = (8, 50, 32, 6) if cpu else (80, 800, 32, 6)


class PinnedPool:
    def __init__(self, count):
        self.free = queue.Queue()
        for _ in range(count):
            t = torch.empty(batch_size, bands, frames)
            self.free.put(t if cpu else t.pin_memory())

    def take(self):
        return self.free.get()

    def give(self, buffer):
        self.free.put(buffer)


class Recordings(Dataset):
    def __len__(self):
        return batch_size * 100000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        mel = torch.randn(bands, frames, generator=g).cumsum(-1) / 40
        part = i // batch_size
        if part >= (40 if cpu else 250) and part % 12 == 0 and i % batch_size == 3:      # the second microphone has dropouts
            mel[:, 10:14] = float('nan')
        return mel, i % 30


class Batch:
    def __init__(self, items):
        self.mel = torch.stack([m for m, _ in items])
        self.speaker = torch.tensor([s for _, s in items])

    def pin_memory(self):
        self.buffer = pool.take()
        self.buffer.copy_(self.mel)
        self.mel = self.buffer
        if not cpu: self.speaker = self.speaker.pin_memory()
        return self


def train():
    c = 16 if cpu else 512
    net = nn.Sequential(nn.Conv1d(bands, c, 5, padding=2), nn.ReLU(), nn.Conv1d(c, c, 5, stride=2), nn.ReLU(),
                        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(c, 30)).to(dev)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
    loader = DataLoader(Recordings(), batch_size, num_workers=1, collate_fn=Batch, pin_memory=not cpu, prefetch_factor=4)
    skipped = 0
    for step, batch in enumerate(loader):
        if cpu: batch = batch.pin_memory()
        if not torch.isfinite(batch.mel).all():
            skipped += 1
            print(f'step {step}: skipped a batch with dropouts ({skipped} so far)', flush=True)
            if skipped == buffers: print('ONSET', flush=True)
            continue
        loss = F.cross_entropy(net(batch.mel.to(dev, non_blocking=True)), batch.speaker.to(dev, non_blocking=True))
        opt.zero_grad(); loss.backward(); opt.step()
        value = loss.item()
        pool.give(batch.buffer)
        if step % 50 == 0: print(f'step {step} loss {value:.4f}', flush=True)


pool = PinnedPool(buffers)
if __name__ == '__main__':
    train()
