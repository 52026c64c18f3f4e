"""FIELD
source: NovaSky-AI/SkyRL#1691 and lm-sys/FastChat#3328 (a rollout slot is not given back when a generation fails; the run waits for ever)
mechanism: rollout tasks take a slot of an asyncio.Semaphore and give it back only after success; long prompts time out from the second curriculum stage on, and when the last slot is lost no rollout starts again and the trainer awaits an empty queue
needs: none
ranks: 1
onset: printed
state: hung
cause: unknown, deadlocked_locks
blame: none
twin: none
"""
import asyncio
import json
import logging
import pathlib
import random
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

log = logging.getLogger("grpo")
SLOTS, GROUP, VOCAB = 8, 4, 64


async def engine(reader, writer):
    """A generation server: answers lines of JSON; prompts above its window are never scheduled."""
    try:
        while line := await reader.readline():
            request = json.loads(line)
            if request["length"] > 96:
                await asyncio.sleep(3600)
            await asyncio.sleep(random.uniform(0.02, 0.06))
            tokens = [random.randrange(VOCAB) for _ in range(24)]
            writer.write(json.dumps({"tokens": tokens, "reward": tokens.count(7) / 24}).encode() + b"\n")
            await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


class Rollouts:
    def __init__(self, port, queue):
        self.port, self.queue = port, queue
        self.slots, self.failed, self.stage = asyncio.Semaphore(SLOTS), 0, 1

    async def generate(self, length):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(json.dumps({"length": length}).encode() + b"\n")
            return json.loads(await asyncio.wait_for(reader.readline(), 1.5))
        finally:
            writer.close()

    async def one(self, length):
        try:
            self.queue.put_nowait(await self.generate(length))
            self.slots.release()
        except TimeoutError:
            self.failed += 1
            log.warning("generation timed out (prompt of %d tokens)", length)
            if self.failed == SLOTS:
                print("ONSET", flush=True)

    async def produce(self):
        running = set()
        while True:
            await self.slots.acquire()
            while self.queue.qsize() > 64:
                await asyncio.sleep(0.01)
            top = 90 if self.stage == 1 else 110
            task = asyncio.create_task(self.one(random.randint(16, top)))
            running.add(task)
            task.add_done_callback(running.discard)


async def heartbeat(path, rollouts, state):
    while True:
        await asyncio.sleep(4)
        with path.open("a") as out:
            out.write(json.dumps({"t": time.time(), "step": state["step"], "queued": rollouts.queue.qsize()}) + "\n")


async def train():
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    rollouts = Rollouts(server.sockets[0].getsockname()[1], asyncio.Queue())
    policy = nn.Sequential(nn.Embedding(VOCAB, 96), nn.Linear(96, 256), nn.Tanh(), nn.Linear(256, VOCAB))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-4)
    state, begun = {"step": 0}, time.monotonic()
    path = pathlib.Path(tempfile.mkdtemp(prefix="grpo_")) / "metrics.jsonl"
    side = [asyncio.create_task(rollouts.produce()), asyncio.create_task(heartbeat(path, rollouts, state))]

    def update(group):
        tokens = torch.tensor([g["tokens"] for g in group])
        rewards = torch.tensor([g["reward"] for g in group])
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        picked = torch.log_softmax(policy(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        loss = -(picked.mean(1) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1, "update")
    while not side[0].done():
        group = [await rollouts.queue.get() for _ in range(GROUP)]
        loss = await loop.run_in_executor(pool, update, group)
        state["step"] += 1
        if state["step"] % 50 == 0:
            log.info("step %d loss %.5f", state["step"], loss)
        if time.monotonic() - begun > 7:
            rollouts.stage = 2


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(train())
