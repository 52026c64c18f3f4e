"""FIELD
source: https://github.com/python/cpython/issues/115634 (ProcessPoolExecutor hangs with max_tasks_per_child)
mechanism: the worker of the executor exits at its task limit and, because of a stale token of the idle semaphore, no other one is started; the training waits for futures that nobody works on
needs: cpu
ranks: 1
onset: printed
state: hung
cause: dead_worker, deadlocked_locks, unknown
blame: decode_clips (frame_decode.py)
twin: none
"""
import zlib
from concurrent.futures import ProcessPoolExecutor

import numpy as np


def decode(blob):
    frames = np.frombuffer(zlib.decompress(blob), dtype=np.uint8).reshape(16, 32, 32)
    return (frames.astype(np.float32) / 255.0).mean(0)


def decode_clips(pool, blobs):
    futures = [pool.submit(decode, b) for b in blobs]
    return np.stack([f.result() for f in futures])


def main():
    import torch
    import torch.nn as nn

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    clips = [zlib.compress(rng.integers(0, 64, (16, 32, 32), dtype=np.uint8).tobytes()) for _ in range(400)]
    net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 3, padding=1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    # the decoder leaks, so a worker is replaced after 60 clips
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=60) as pool:
        for epoch in range(20):
            n = 20 if epoch < 2 else 80
            if epoch == 2:
                print("ONSET", flush=True)
            batch = torch.from_numpy(decode_clips(pool, clips[epoch * 20:epoch * 20 + n])).unsqueeze(1)
            for step in range(250):
                x = batch[torch.randint(0, len(batch), (16,))]
                loss = (net(x) - x).abs().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(f"epoch {epoch} clips {len(batch)} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
