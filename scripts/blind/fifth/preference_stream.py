"""FIELD
source: own: the sound relative of NovaSky-AI/SkyRL#1691 (asyncio rollouts with slots that are given back, beside a dashboard connection that never answers)
mechanism: an asyncio trainer draws pairs from a local engine through a semaphore and updates in a thread; some generations time out and are dropped properly, a dashboard task waits for ever for a silent peer, and a spare checkpoint thread waits for its condition; the steps go on
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import asyncio
import logging
import random
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

log = logging.getLogger("dpo")


class Saver(threading.Thread):
    """Writes a checkpoint when asked to, every few thousand steps."""

    def __init__(self, folder):
        super().__init__(name="saver", daemon=True)
        self.folder, self.wanted, self.job = folder, threading.Condition(), None

    def ask(self, state):
        with self.wanted:
            self.job = {key: value.clone() for key, value in state.items()}
            self.wanted.notify()

    def run(self):
        while True:
            with self.wanted:
                self.wanted.wait_for(lambda: self.job is not None)
                job, self.job = self.job, None
            torch.save(job, self.folder / "policy.pt")


async def silent_dashboard(reader, writer):
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    writer.close()


class PairSource:
    def __init__(self, slots=6, vocab=200):
        self.slots, self.vocab, self.lost = asyncio.Semaphore(slots), vocab, 0

    async def engine_call(self):
        await asyncio.sleep(30 if random.random() < 0.01 else random.uniform(0.005, 0.03))
        return torch.randint(0, self.vocab, (2, 64))

    async def feed(self, out):
        while True:
            async with self.slots:
                try:
                    pair = await asyncio.wait_for(self.engine_call(), 1.0)
                except TimeoutError:
                    self.lost += 1
                    continue
            await out.put(pair)


class Scorer(nn.Module):
    def __init__(self, vocab, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.block = nn.TransformerEncoderLayer(dim, 4, 256, batch_first=True, dropout=0.0)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        scores = torch.log_softmax(self.head(self.block(self.embed(tokens[:, :-1]))), -1)
        return scores.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)


async def main():
    dashboard = await asyncio.start_server(silent_dashboard, "127.0.0.1", 0)

    async def report():
        reader, writer = await asyncio.open_connection("127.0.0.1", dashboard.sockets[0].getsockname()[1])
        writer.write(b"hello dpo-run-17\n")
        await reader.readline()  # the name of the run page; the dashboard is down

    source, pairs = PairSource(), asyncio.Queue(48)
    policy, reference = Scorer(source.vocab), Scorer(source.vocab).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    saver = Saver(Path(tempfile.mkdtemp(prefix="dpo_")))
    saver.start()
    side = [asyncio.create_task(report()), *(asyncio.create_task(source.feed(pairs)) for _ in range(6))]

    def update(batch):
        good, bad = batch[:, 0], batch[:, 1]
        with torch.no_grad():
            anchor = reference(good) - reference(bad)
        loss = -nn.functional.logsigmoid(0.1 * (policy(good) - policy(bad) - anchor)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    begun, told, step = time.monotonic(), False, 0
    while side:
        batch = torch.stack([await pairs.get() for _ in range(8)])
        loss = await asyncio.to_thread(update, batch)
        step += 1
        if step % 50 == 0:
            log.info("step %d loss %.4f (%d generations lost)", step, loss, source.lost)
        if step % 4000 == 0:
            saver.ask(policy.state_dict())
        if not told and time.monotonic() - begun > 10:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(main())
