"""FIELD
source: https://github.com/thinking-machines-lab/tinker-cookbook/pull/480
mechanism: an asynchronous trainer awaits trajectory groups; the dataloader coroutine runs out of prompts and returns, the rollout workers wait for prompts, and nobody tells the training loop
needs: none
ranks: 1
onset: printed
state: hung
cause: unknown, deadlocked_locks
blame: none
twin: none
"""
import asyncio
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
policy = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 16))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
announced = False


async def dataloader(prompts, count):
    global announced
    for _ in range(count):
        await prompts.put(torch.randn(64, 32))
    announced = True
    print("prompts exhausted", flush=True)


async def rollout_worker(prompts, groups):
    while True:
        prompt = await prompts.get()
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=policy(prompt)).sample()
        await asyncio.sleep(0.02)
        await groups.put((prompt, actions, torch.rand(64)))


async def training_loop(groups):
    step = 0
    while True:
        if announced and groups.empty():
            print("ONSET", flush=True)
        batch = [await groups.get() for _ in range(4)]
        for prompt, actions, rewards in batch:
            logp = torch.distributions.Categorical(logits=policy(prompt)).log_prob(actions)
            loss = -(logp * (rewards - rewards.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        step += 1
        if step % 10 == 0:
            print("iteration", step, float(loss), flush=True)


async def main():
    prompts, groups = asyncio.Queue(8), asyncio.Queue(8)
    workers = [asyncio.create_task(rollout_worker(prompts, groups)) for _ in range(4)]
    await asyncio.gather(dataloader(prompts, 2000), training_loop(groups), *workers)


asyncio.run(main())
