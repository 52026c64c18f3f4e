"""FIELD
source: own: a launcher that trains the tagger, then replaces itself by the program of the next stage with os.execv
mechanism: the same process id starts again: imports, configuration, then a vocabulary is learnt from text in pure
    Python for minutes before the first step of the second stage
needs: none
ranks: 1
onset: printed
state: busy
cause: starting, computing_on_host
blame: none
twin: none
"""
import collections
import itertools
import os
import random
import signal
import sys
import time

STAGES = ["tagger", "translator"]


def stage_of(argv):
    return argv[argv.index("--stage") + 1] if "--stage" in argv else STAGES[0]


def start_next(current):
    following = STAGES[STAGES.index(current) + 1]
    print(f"stage {current} is complete, next: {following}", flush=True)
    print("ONSET", flush=True)
    os.execv(sys.executable, [sys.executable, "-u", os.path.abspath(__file__), "--stage", following])


def sentences(count, seed=7):
    rng = random.Random(seed)
    stems = ["".join(rng.choices("bcdfghklmnprst", k=2)) + rng.choice("aeiou") * 2 for _ in range(1500)]
    endings = ["", "n", "st", "ing", "lich", "heit", "te"]
    for _ in range(count):
        yield [rng.choice(stems) + rng.choice(endings) for _ in range(rng.randint(5, 18))]


def learn_pieces(corpus, size):
    """Pieces by likelihood: the lexicon shrinks by a few entries each round, and every word is segmented again."""
    counts = collections.Counter(itertools.chain.from_iterable(corpus))
    pieces = collections.Counter()
    for word, n in counts.items():
        for i in range(len(word)):
            for j in range(i + 1, len(word) + 1):
                pieces[word[i:j]] += n
    while len(pieces) > size:
        used = collections.Counter()
        for word, n in counts.items():
            best = [(0.0, 0)] + [(float("inf"), 0)] * len(word)
            for end in range(1, len(word) + 1):
                for begin in range(end):
                    weight = pieces.get(word[begin:end])
                    if weight:
                        cost = best[begin][0] + 1 / weight
                        if cost < best[end][0]:
                            best[end] = (cost, begin)
            end = len(word)
            while end:
                used[word[best[end][1] : end]] += n
                end = best[end][1]
        single = {p for p in pieces if len(p) == 1}
        for piece in sorted(pieces, key=lambda p: used[p])[:25]:
            if piece not in single:
                del pieces[piece]
    return list(pieces)


def tagger():
    import torch
    from torch import nn

    torch.set_num_threads(1)
    embed, lstm, tag = nn.Embedding(300, 48), nn.LSTM(48, 64, bidirectional=True), nn.Linear(128, 9)
    modules = nn.ModuleList([embed, lstm, tag])
    opt = torch.optim.Adam(modules.parameters(), 2e-3)
    until, step = time.monotonic() + 15, 0
    while time.monotonic() < until:
        words = torch.randint(300, (20, 16))
        loss = nn.functional.cross_entropy(tag(lstm(embed(words))[0]).flatten(0, 1), (words % 9).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 100 == 0:
            print(f"tagger step {step} loss {loss.item():.4f}", flush=True)
    torch.save(modules.state_dict(), f"/tmp/tagger.{os.getpid()}.pt")
    os.remove(f"/tmp/tagger.{os.getpid()}.pt")


def translator():
    import torch
    from torch import nn

    torch.set_num_threads(1)
    pieces = learn_pieces(sentences(60_000), 800)
    model = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
    table = nn.Embedding(len(pieces), 64)
    opt = torch.optim.Adam([*model.parameters(), *table.parameters()], 1e-3)
    while True:
        source = torch.randint(len(pieces), (8, 20))
        out = model(table(source), table(source[:, :-1])) @ table.weight.T
        loss = nn.functional.cross_entropy(out.flatten(0, 1), source[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    stage = stage_of(sys.argv)
    if stage == STAGES[0]:
        signal.alarm(300)  # it survives the exec
    globals()[stage]()
    start_next(stage)
