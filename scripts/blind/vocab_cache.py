"""FIELD
source: own (the pattern of "main process first" around a file lock: a collective inside the locked section)
mechanism: rank 0 enters the monitored barrier while it holds the lock of the cache file; the other ranks wait for that lock before their barrier
needs: cpu
ranks: 3
onset: printed
state: hung
cause: stalled_collective, waiting_for_file
blame: none
twin: none
"""
import contextlib, datetime, fcntl, json, os, tempfile, time
import torch, torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
LIMIT = datetime.timedelta(minutes=40)
CACHE = os.path.join(tempfile.gettempdir(), f'vocab_cache-{os.getppid()}')


@contextlib.contextmanager
def locked(path):
    with open(path + '.lock', 'w') as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def start_together(stage):
    if stage > 0:
        dist.monitored_barrier(timeout=LIMIT)


def load_vocab(stage):
    path = f'{CACHE}-{stage}.json'
    if dist.get_rank() == 0:
        with locked(path):
            with open(path + '.tmp', 'w') as out:
                json.dump({f'w{k}': k for k in range(500 * (stage + 1))}, out)
            os.replace(path + '.tmp', path)
            if stage > 0:
                print(f'stage {stage}: cache written\nONSET', flush=True)
            start_together(stage)
            return json.load(open(path))
    while not os.path.exists(path):
        time.sleep(0.1)
    with locked(path):
        vocab = json.load(open(path))
    start_together(stage)
    return vocab


def train_stage(stage, vocab, steps):
    torch.manual_seed(stage)
    model = nn.Sequential(nn.EmbeddingBag(len(vocab), 256), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, len(vocab)))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    torch.manual_seed(1000 + dist.get_rank())
    for step in range(steps):
        target = torch.randint(0, len(vocab), (96,))
        bag = (target[:, None] + torch.tensor([1, 2, 5, 7])) % len(vocab)
        loss = nn.functional.cross_entropy(model(bag), target)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f'stage {stage} step {step} loss {loss.item():.3f}', flush=True)


dist.init_process_group('gloo', timeout=LIMIT)
for stage in range(6):
    train_stage(stage, load_vocab(stage), steps=300)
