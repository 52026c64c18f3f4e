"""FIELD
source: https://github.com/tsiendragon/qwen-image-finetune/issues/39 (with gradient accumulation the progress bar looks as if the training had stopped); the helpers are own
mechanism: each optimizer step accumulates 600 micro-batches, so the log is silent for long, while helper threads and an idle helper process wait; the training thread computes all the time
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import multiprocessing as mp
import os
import queue
import tempfile
import threading
import time

import torch
import torch.nn as nn


def answer_status(conn):
    while (question := conn.recv()) is not None:
        conn.send(question)


class Prefetcher:
    """Keeps a few micro-batches ready; waits most of the time, since the queue is full."""

    def __init__(self, ids, seq, batch, depth=8):
        self.q = queue.Queue(depth)
        self.ids, self.seq, self.batch = ids, seq, batch
        threading.Thread(target=self._fill, daemon=True, name="prefetch").start()

    def _fill(self):
        while True:
            at = torch.randint(0, len(self.ids) - self.seq - 1, (self.batch,)).tolist()
            self.q.put(torch.stack([self.ids[a:a + self.seq + 1] for a in at]))


def heartbeat(path, stop):
    while not stop.wait(45):
        with open(path, "w") as f:
            f.write(str(time.time()))


class LM(nn.Module):
    def __init__(self, vocab=512, dim=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, norm_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.out(self.enc(self.emb(ids), mask=mask, is_causal=True))


def main(max_seconds=660):
    torch.set_num_threads(1)
    run = tempfile.mkdtemp(prefix="lm_")
    open(os.path.join(run, "train.lock"), "w").close()
    ours, theirs = mp.Pipe()
    mp.Process(target=answer_status, args=(theirs,), daemon=True).start()
    stop = threading.Event()
    threading.Thread(target=heartbeat, args=(os.path.join(run, "alive"), stop), daemon=True).start()
    data = Prefetcher(torch.randint(0, 512, (500000,)), 96, 8)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=6e-4)
    start, step, accum = time.time(), 0, 4
    while time.time() - start < max_seconds:
        for _ in range(accum):
            ids = data.q.get()
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / accum
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        step += 1
        print(f"step {step} loss {loss.item() * accum:.3f} at {time.time() - start:.1f} s", flush=True)
        if accum == 4 and time.time() - start > 8:
            accum = 600                            # the large batch of the paper
            print("ONSET", flush=True)
    stop.set()


if __name__ == "__main__":
    main()
