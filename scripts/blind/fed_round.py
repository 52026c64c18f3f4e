"""FIELD
source: own (federated averaging; cf. the many reports of servers that "do nothing", where the clients were simply at their local epochs)
mechanism: the server rank waits in recv() for the clients' updates, which come only after 80 s of local training per round
needs: cpu
ranks: 3
onset: printed
state: healthy, busy
cause: cpu_training, balanced, waiting_on_work
blame: none
twin: none
"""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.set_num_threads(1)


class Client:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)
        self.shift = 0.3 * torch.randn(1, 64, generator=self.gen)

    def fit(self, model, seconds):
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        until, seen = time.time() + seconds, 0
        while time.time() < until:
            x = torch.randn(128, 64, generator=self.gen) + self.shift
            loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)
        return seen, loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))
    size = sum(p.numel() for p in model.parameters())
    client = Client(rank) if rank else None
    for round_, seconds in enumerate([4, 4, 80, 80, 80, 80, 80]):
        weights = parameters_to_vector(model.parameters()).detach()
        dist.broadcast(weights, src=0)
        vector_to_parameters(weights, model.parameters())
        if rank == 0:
            if round_ == 2:
                print("ONSET", flush=True)
            total, count = torch.zeros(size), 0.0
            for _ in range(world - 1):
                update = torch.empty(size + 2)
                dist.recv(update)
                total += update[:-2] * update[-2]
                count += update[-2].item()
                print(f"round {round_}: an update of {int(update[-2])} examples, loss {update[-1]:.4f}", flush=True)
            vector_to_parameters(total / count, model.parameters())
        else:
            seen, loss = client.fit(model, seconds + 3 * rank)
            update = parameters_to_vector(model.parameters()).detach()
            dist.send(torch.cat([update, torch.tensor([float(seen), loss])]), dst=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
