"""FIELD
source: own (hard negatives are mined anew by a child process of rank 0 between two epochs, as dense retrieval trainings do)
mechanism: rank 0 waits for a child process that scores all passages for about seven minutes, the other rank waits in a broadcast for the result; then the training goes on
needs: cpu
ranks: 2
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import datetime, os, pathlib, subprocess, sys, tempfile, time
import numpy as np
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


def mine(folder, seconds):
    """Runs in a process of its own: for each query the passages that come closest."""
    passages, queries = np.load(folder / 'passages.npy'), np.load(folder / 'queries.npy')
    best = np.zeros((len(queries), 4), dtype=np.int64)
    begun, sweep = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        for first in range(0, len(queries), 64):
            scores = queries[first:first + 64] @ passages.T
            scores += np.random.default_rng(sweep).normal(scale=0.01, size=scores.shape)
            best[first:first + 64] = np.argpartition(-scores, 4, axis=1)[:, :4]
            if time.monotonic() - begun > seconds:
                break
        sweep += 1
        print(f'  sweep {sweep} done', flush=True)
    np.save(folder / 'negatives.npy', best)


def refresh(encoder, passages, queries, seconds):
    folder = pathlib.Path(tempfile.mkdtemp(prefix='mine_negatives-'))
    with torch.no_grad():
        np.save(folder / 'passages.npy', encoder(passages).numpy())
        np.save(folder / 'queries.npy', encoder(queries).numpy())
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    subprocess.run([sys.executable, __file__, 'mine', str(folder), str(seconds)], check=True, env=env)
    return torch.from_numpy(np.load(folder / 'negatives.npy'))


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 128))
    model = DDP(encoder)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    passages, queries = torch.randn(20000, 64), torch.randn(2000, 64)
    negatives = torch.randint(0, 20000, (2000, 4))
    torch.manual_seed(rank)
    for epoch in range(2):
        for step in range(300):
            pick = torch.randint(0, 2000, (32,))
            docs = torch.cat([passages[pick][:, None], passages[negatives[pick]]], 1)
            out = model(torch.cat([queries[pick], docs.flatten(0, 1)]))
            q, d = out[:32], out[32:].view(32, 5, -1)
            loss = nn.functional.cross_entropy((d @ q[:, :, None]).squeeze(2), torch.zeros(32, dtype=torch.long))
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 0 and rank == 0:
                print(f'epoch {epoch} step {step} loss {loss.item():.4f}', flush=True)
        if epoch == 0:
            if rank == 0:
                print('mining negatives\nONSET', flush=True)
                negatives = refresh(encoder, passages, queries, seconds=420)
            dist.broadcast(negatives, src=0)
    dist.destroy_process_group()


if __name__ == '__main__':
    if sys.argv[1:2] == ['mine']:
        mine(pathlib.Path(sys.argv[2]), float(sys.argv[3]))
    else:
        main()
