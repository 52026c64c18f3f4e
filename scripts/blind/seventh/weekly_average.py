"""FIELD
source: own: local SGD over two sites; the sites average rarely and pace themselves for the sake of the power budget
mechanism: at first the sites average every 2 s; from the second phase on only every 70 s or so, and in between each
    site trains on its own and sleeps a little after each batch; the one that is ready first waits a second or two for
    the other
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: healthy
cause: any
blame: none
twin: none
"""
import asyncio
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta

ROUNDS = ([40] * 8) + [1500] * 100


async def supervise(world=2):
    with tempfile.TemporaryDirectory(prefix="sites_") as folder:
        sites = []
        for rank in range(world):
            env = os.environ | {"SITE": str(rank), "SITES": str(world), "STORE": os.path.join(folder, "store")}
            out = asyncio.subprocess.PIPE
            sites.append(await asyncio.create_subprocess_exec(sys.executable, "-u", __file__, env=env, stdout=out))

        async def relay(rank, site):
            async for line in site.stdout:
                text = line.decode().rstrip()
                print(text if text == "ONSET" else f"[site {rank}] {text}", flush=True)
            return await site.wait()

        return await asyncio.gather(*(relay(r, s) for r, s in enumerate(sites)))


def site(rank, world, path):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world, timeout=timedelta(minutes=20)
    )
    net = nn.Sequential(nn.Linear(60, 256), nn.Softplus(), nn.Linear(256, 256), nn.Softplus(), nn.Linear(256, 1))
    inner = torch.optim.SGD(net.parameters(), 0.02)
    momentum = torch.zeros_like(parameters_to_vector(net.parameters()))
    generator = torch.Generator().manual_seed(rank)
    teacher = torch.randn(60, generator=torch.Generator().manual_seed(99)) / 8

    def local_steps(count):
        total = 0.0
        for _ in range(count):
            x = torch.randn(128, 60, generator=generator)
            loss = nn.functional.huber_loss(net(x).squeeze(1), torch.sin(x @ teacher))
            inner.zero_grad()
            loss.backward()
            inner.step()
            total += loss.item()
            time.sleep(0.04)
        return total / count

    for number, count in enumerate(ROUNDS):
        if number == 8 and rank == 0:
            print("ONSET", flush=True)
        start = parameters_to_vector(net.parameters()).detach().clone()
        loss = local_steps(count)
        delta = start - parameters_to_vector(net.parameters()).detach()
        dist.all_reduce(delta)
        momentum.mul_(0.6).add_(delta / world)
        vector_to_parameters(start - 0.7 * momentum, net.parameters())
        print(f"round {number}: {count} steps, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    if "SITE" in os.environ:
        site(int(os.environ["SITE"]), int(os.environ["SITES"]), os.environ["STORE"])
    else:
        asyncio.run(supervise())
