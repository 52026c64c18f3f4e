"""FIELD
source: tier4/Diffusion-Planner#337 (some ranks evaluate for many minutes while the rest idle at the next collective)
mechanism: the validation set is split by source, so rank 0 has most of the long documents to decode; rank 1 is done early and waits in all_gather_object until rank 0 has finished
needs: cpu
ranks: 2
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: none
twin: none
"""
import datetime
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
VOCAB = 600


class Decoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.embed(ids), state)
        return self.out(h), state


@torch.no_grad()
def beam_search(model, prompt, length, width=8):
    logits, state = model(prompt[None])
    scores, first = logits[0, -1].log_softmax(-1).topk(width)
    beams, state = first[:, None], state.repeat(1, width, 1)
    for _ in range(length):
        logits, state = model(beams[:, -1:], state)
        total = scores[:, None] + logits[:, -1].log_softmax(-1)
        scores, flat = total.flatten().topk(width)
        origin, token = flat // VOCAB, flat % VOCAB
        beams = torch.cat([beams[origin], token[:, None]], 1)
        state = state[:, origin].contiguous()
    return beams[0], scores[0].item() / length


def validate(model, documents):
    model.eval()
    mine, begun = [], time.time()
    for n, (prompt, length) in enumerate(documents):
        if time.time() - begun > 400:
            break
        mine.append(beam_search(model, prompt, length)[1])
        if n % 20 == 0:
            print(f"rank {dist.get_rank()}: {n}/{len(documents)} decoded", flush=True)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    model.train()
    scores = [s for part in everyone for s in part]
    return sum(scores) / len(scores)


def fit(model, opt, steps, rank):
    for step in range(steps):
        ids = torch.randint(0, VOCAB, (8, 33))
        ids[:, 1::2] = (ids[:, ::2][:, :16] * 3 + 1) % VOCAB
        logits, _ = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=14))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Decoder()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    torch.manual_seed(rank + 1)
    count, length = [(1200, 900), (12, 150)][rank]
    documents = [(torch.randint(0, VOCAB, (20,)), length) for _ in range(count)]
    fit(model, opt, 150, rank)
    if rank == 0:
        print("ONSET", flush=True)
    score = validate(model, documents)
    if rank == 0:
        print(f"validation {score:.3f}", flush=True)
    fit(model, opt, 300, rank)


if __name__ == "__main__":
    main()
