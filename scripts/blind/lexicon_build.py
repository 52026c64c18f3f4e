"""FIELD
source: pytorch/pytorch#189245 and nvdiffrast#190 (a lock file of torch's FileBaton that a killed build left behind)
mechanism: the lock file of an earlier, killed build is still there; at the first evaluation every rank waits in FileBaton.wait for it to disappear
needs: cpu
ranks: 2
onset: printed
state: hung
cause: waiting_for_file
blame: load_lexicon (lexicon_build.py)
twin: none
"""
import datetime, os, pathlib, pickle, subprocess, sys, tempfile
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.file_baton import FileBaton

torch.set_num_threads(1)
BUILD = pathlib.Path(tempfile.gettempdir()) / f'lexicon_build-{os.getppid()}'
EARLIER = '''
import os, signal, sys
from torch.utils.file_baton import FileBaton
baton = FileBaton(sys.argv[1])
baton.try_acquire()
os.kill(os.getpid(), signal.SIGKILL)
'''


def load_lexicon():
    target, baton = BUILD / 'lexicon.pkl', FileBaton(str(BUILD / 'lock'))
    if baton.try_acquire():
        try:
            target.write_bytes(pickle.dumps({f'w{k}': k for k in range(10000)}))
        finally:
            baton.release()
    else:
        baton.wait()
    return pickle.loads(target.read_bytes())


def evaluate(model):
    lexicon = load_lexicon()
    with torch.no_grad():
        ids = torch.tensor([lexicon[f'w{k}'] % 300 for k in range(512)])
        return model.module(ids.view(64, 8)).logsumexp(1).mean().item()


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    if rank == 0:
        BUILD.mkdir(exist_ok=True)
        subprocess.run([sys.executable, '-c', EARLIER, str(BUILD / 'lock')])
    dist.barrier()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(300, 128), nn.Flatten(), nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 300)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for step in range(1, 50001):
        ids = (torch.randint(0, 300, (64, 1)) + torch.arange(9) * 5) % 300
        loss = nn.functional.cross_entropy(model(ids[:, :8]), ids[:, 8])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
        if step % 400 == 0:
            if rank == 0:
                print('evaluating\nONSET', flush=True)
            value = evaluate(model)
            print(f'rank {rank} eval {value:.4f}', flush=True)


if __name__ == '__main__':
    main()
