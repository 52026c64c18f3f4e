"""FIELD
source: https://github.com/yumorishita/LiCSBAS2/pull/164 (bpo-22393: multiprocessing.Pool.map waits for ever for the result of a worker that was killed)
mechanism: the pool's workers have a limit of CPU seconds that counts over their whole life; in a later epoch the kernel kills one in the middle of a task and Pool.map waits for its result for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: dead_worker
blame: none
twin: none
"""
import multiprocessing as mp, resource, threading, time
import numpy as np
import torch, torch.nn as nn

torch.set_num_threads(1)
WORDS = 4000

def limit_cpu():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (7, 7))          # malformed documents used to keep the parser busy for hours

def parse(seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, WORDS, 9000)
    counts, prev = {}, 0
    for token in ids.tolist():
        key = (prev * 31 + token) % 512
        counts[key] = counts.get(key, 0) + 1
        prev = token
    row = np.zeros(512, dtype=np.float32)
    row[list(counts)] = list(counts.values())
    return row, int(seed % 5)

def watch_pool(pool):
    known = {p.pid for p in pool._pool}
    while True:
        time.sleep(0.2)
        pids = {p.pid for p in list(pool._pool)}
        if pids != known:
            print('ONSET', flush=True)
            print(f'pool: {sorted(known - pids)} replaced by {sorted(pids - known)}', flush=True)
            return

def main():
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 5))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    with mp.get_context('fork').Pool(2, initializer=limit_cpu) as pool:
        threading.Thread(target=watch_pool, args=(pool,), daemon=True).start()
        for epoch in range(10_000):
            rows = pool.map(parse, range(epoch * 400, epoch * 400 + 400), chunksize=20)
            x = torch.from_numpy(np.stack([r for r, _ in rows]))
            y = torch.tensor([c for _, c in rows])
            for part in torch.randperm(len(x)).split(40):
                loss = nn.functional.cross_entropy(model(x[part]), y[part])
                opt.zero_grad(); loss.backward(); opt.step()
            print(f'epoch {epoch} loss {loss.item():.4f}', flush=True)

if __name__ == '__main__':
    main()
