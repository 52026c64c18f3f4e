"""No workers: the training thread itself reads its memory-mapped corpus, whose file system stops answering (a page
fault).
"""

import mmap

import slow_mount
import stage
import torch

PAGE = 131_072


def open_corpus(path):
    with open(path, "rb") as corpus:
        return mmap.mmap(corpus.fileno(), 0, prot=mmap.PROT_READ)


def tokens(corpus, position):
    return torch.tensor(list(corpus[position : position + 512]))


def pretrain(opt):
    torch.set_num_threads(1)
    slow_mount.mount("/mnt/corpus", 10**9, lambda _, offset: 0.0 if offset < 10**8 else None)
    corpus = open_corpus("/mnt/corpus/train.bin")
    embedding = torch.nn.Embedding(256, 512)
    sgd = torch.optim.SGD(embedding.parameters(), lr=0.1)
    for step in range(10**6):
        if step == opt.steps:
            stage.onset()
        position = 0 if step < opt.steps else 500_000_000 + step * PAGE * 64
        sgd.zero_grad()
        embedding(tokens(corpus, position)).pow(2).mean().backward()
        sgd.step()


pretrain(stage.arguments())
