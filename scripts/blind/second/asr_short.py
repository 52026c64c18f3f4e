"""FIELD
source: NVIDIA-NeMo/Automodel#2468 and Lightning-AI/pytorch-lightning#5243 (one rank skips a micro-batch with continue, the others run its backward)
mechanism: rank 1 skips one batch of too short utterances and reaches the end of the epoch one all_reduce early; it gathers the scores while the others still wait in that all_reduce
needs: cpu
ranks: 3
onset: printed
state: hung
cause: mismatched_collective
blame: rank 1
twin: none
"""
import datetime

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
MIN_FRAMES = 40


class Recogniser(nn.Module):
    def __init__(self, mels=40, dim=96, tokens=30):
        super().__init__()
        self.conv = nn.Conv1d(mels, dim, 5, stride=2)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, tokens)

    def forward(self, feats):
        h = torch.relu(self.conv(feats)).transpose(1, 2)
        return self.out(self.rnn(h)[0]).log_softmax(-1)


def batches(epoch, rank, n=70):
    g = torch.Generator().manual_seed(1000 * epoch + rank)
    for k in range(n):
        longest = 12 if (epoch, rank, k) == (3, 1, 17) else int(torch.randint(60, 120, (1,), generator=g))
        feats = torch.randn(8, 40, longest, generator=g)
        targets = torch.randint(1, 30, (8, 6), generator=g)
        yield feats, targets


def sync(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, part in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))


def gather_scores(value):
    scores = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, torch.tensor([value]))
    return torch.cat(scores)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Recogniser()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(60):
        total, used = 0.0, 0
        for feats, targets in batches(epoch, rank):
            if feats.shape[-1] < MIN_FRAMES:
                print(f"rank {rank}: utterances too short, batch left out", flush=True)
                continue
            logp = model(feats)
            sizes = torch.full((8,), logp.shape[1], dtype=torch.long)
            loss = nn.functional.ctc_loss(logp.transpose(0, 1), targets, sizes, torch.full((8,), 6), zero_infinity=True)
            opt.zero_grad()
            loss.backward()
            sync(model)
            opt.step()
            total, used = total + loss.item(), used + 1
        if used < 70:
            print("ONSET", flush=True)
        scores = gather_scores(total / used)
        if rank == 0:
            print(f"epoch {epoch} losses {[round(s, 3) for s in scores.tolist()]}", flush=True)


if __name__ == "__main__":
    main()
