"""FIELD
source: own (a custom batch type with a pin_memory method, as in the PyTorch documentation of memory pinning)
mechanism: pin_memory of the batch takes one of 24 pinned slots; the trainer keeps hard batches for a replay and never gives their slots back, so DataLoader's pinning thread waits for a slot and the trainer for the pinning thread
needs: gpu
ranks: 1
onset: printed
state: hung
cause: stuck_pin_memory, deadlocked_locks
blame: pin_memory (slot_batches.py)
twin: none
"""
import collections, os, threading, time
import torch, torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
BATCH, WIDTH, SLOTS = (32, 64, 24) if cpu else (512, 1024, 24)

class SlotPool:
    def __init__(self, n):
        self.free = collections.deque(torch.empty(BATCH, WIDTH + 1, pin_memory=not cpu) for _ in range(n))
        self.changed = threading.Condition()

    def take(self):
        with self.changed:
            while not self.free:
                self.changed.wait()
            return self.free.popleft()

    def give(self, slot):
        with self.changed:
            self.free.append(slot)
            self.changed.notify()

POOL = None

class SlotBatch:
    def __init__(self, rows):
        self.data, self.slot = torch.stack(rows), None

    def pin_memory(self):
        self.slot = POOL.take()
        self.data = self.slot.copy_(self.data)
        return self

    def release(self):
        POOL.give(self.slot)
        self.slot = self.data = None

class Spectra(Dataset):
    def __len__(self): return 200_000
    def __getitem__(self, i):
        row = torch.sin(torch.arange(WIDTH + 1) * (i % 97 + 1) / 50)
        row[-1] = i % 97 if i % 5 else i // 97 % 97      # a fifth of the labels is from the old catalogue
        return row

def main():
    global POOL
    POOL = SlotPool(SLOTS)
    loader = DataLoader(Spectra(), BATCH, shuffle=True, num_workers=1, prefetch_factor=4, pin_memory=not cpu, collate_fn=SlotBatch, drop_last=True, persistent_workers=True)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 97)).to(dev)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    begun, step, hard, mean = time.time(), 0, [], None
    while True:
        for batch in loader:
            if cpu: batch.pin_memory()
            data = batch.data.to(dev, non_blocking=True)
            loss = nn.functional.cross_entropy(model(data[:, :-1]), data[:, -1].long())
            opt.zero_grad(); loss.backward(); opt.step()
            value = loss.item()
            mean = value if mean is None else 0.95 * mean + 0.05 * value
            if time.time() - begun > 10 and value > mean:
                hard.append(batch)                # for a second pass at the end of the epoch
                if len(hard) == SLOTS: print('ONSET', flush=True)
            else:
                batch.release()
            if step % 50 == 0: print(f'step {step} loss {value:.4f} hard {len(hard)}', flush=True)
            step += 1
        for batch in hard:
            batch.release()
        hard.clear()

if __name__ == '__main__':
    main()
