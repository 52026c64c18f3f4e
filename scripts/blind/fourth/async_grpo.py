"""FIELD
source: huggingface/trl#6913 and verl-project/verl#1138 (the rollout task of an asynchronous trainer ends with an exception that is never read; the trainer awaits the next group)
mechanism: one coroutine generates groups of completions into an asyncio.Queue, one trains on them, one logs the queue's length every two seconds; the generator's task dies of a KeyError and the trainer awaits queue.get() for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: unknown, deadlocked_locks, dead_worker, stuck_worker, endless_python
blame: none
twin: none
"""

import asyncio
import signal
import sys

import torch

signal.alarm(300)
torch.set_num_threads(1)
policy = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.Flatten(), torch.nn.Linear(64 * 8, 256))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
REWARDS = {token: float(token % 7) for token in range(256)}


async def generate(queue):
    made = 0
    while True:
        prompt = torch.randint(0, 256, (16, 8))
        with torch.no_grad():
            tokens = torch.multinomial(policy(prompt).softmax(-1), 1).squeeze(1)
        await asyncio.sleep(0.02)
        made += 1
        if made == 300:
            print("ONSET", flush=True)
            del REWARDS[int(tokens[0])]
        await queue.put((prompt, tokens, torch.tensor([REWARDS[int(token)] for token in tokens])))


async def learn(queue):
    update = 0
    while True:
        prompt, tokens, rewards = await queue.get()
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        logp = policy(prompt).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
        loss = -(advantage * logp).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update += 1
        if update % 20 == 0:
            print("update", update, "reward", rewards.mean().item(), flush=True)


async def monitor(queue):
    while True:
        await asyncio.sleep(2.0)
        print("queue", queue.qsize(), file=sys.stderr, flush=True)


async def main():
    queue = asyncio.Queue(maxsize=4)
    tasks = [asyncio.create_task(generate(queue)), asyncio.create_task(monitor(queue))]
    await learn(queue)
    await asyncio.gather(*tasks)


asyncio.run(main())
