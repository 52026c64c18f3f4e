"""FIELD
source: AIChallenger/AI_Challenger_2017#3 (caption evaluation stays in METEOR, a child process that is fed and read through pipes); the two full pipes are own
mechanism: rank 0 writes all captions to the scorer before it reads a line; the scorer blocks on its full output pipe, rank 0 on the full input pipe, and the other ranks in the barrier
needs: cpu
ranks: 3
onset: printed
state: hung
cause: blocked_pipe, blocked_child, stalled_collective
blame: score (caption_eval.py)
twin: none
"""
import datetime, random, subprocess, sys
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
SCORER = r'''
import sys
for line in sys.stdin:
    words = line.split()
    grams = [" ".join(words[k:k + 3]) for k in range(len(words))]
    print(len(set(grams)) / max(1, len(grams)), "|", *grams, flush=True)
'''


def score(captions):
    child = subprocess.Popen([sys.executable, '-c', SCORER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for caption in captions:
        child.stdin.write(caption + '\n')
    child.stdin.close()
    values = [float(line.split('|')[0]) for line in child.stdout]
    child.wait()
    return sum(values) / len(values)


def captions(n):
    rng = random.Random(n)
    return [' '.join(rng.choice(['a', 'dog', 'on', 'the', 'beach', 'runs', 'with', 'ball']) for _ in range(14)) for _ in range(n)]


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(500, 96), nn.Flatten(), nn.Linear(12 * 96, 384), nn.ReLU(), nn.Linear(384, 500)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    val_sizes = [200, 400, 20000]
    for epoch, n in enumerate(val_sizes * 10):
        for step in range(120):
            words = (torch.randint(0, 500, (64, 1)) + torch.arange(13) * 11) % 500
            loss = nn.functional.cross_entropy(model(words[:, :12]), words[:, 12])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f'epoch {epoch} loss {loss.item():.4f}, scoring {n} captions', flush=True)
            if n > 1000:
                print('ONSET', flush=True)
            print(f'epoch {epoch} score {score(captions(n)):.4f}', flush=True)
        dist.barrier()


if __name__ == '__main__':
    main()
