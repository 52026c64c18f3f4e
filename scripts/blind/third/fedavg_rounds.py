"""FIELD
source: own
mechanism: four clients train locally for half a minute and average their weights then; between the rounds no collective is due
needs: none
ranks: 4
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: threshold_stop
"""
import datetime
import signal
import time

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)


class Client:
    def __init__(self, rank):
        generator = torch.Generator().manual_seed(rank)
        self.x = torch.randn(2048, 64, generator=generator)
        self.y = (self.x[:, 0] * (rank + 1) > 0).long()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9)

    def local_round(self, steps):
        for _ in range(steps):
            rows = torch.randint(0, len(self.x), (256,))
            loss = torch.nn.functional.cross_entropy(self.net(self.x[rows]), self.y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def average(self):
        for p in self.net.parameters():
            dist.all_reduce(p)
            p /= dist.get_world_size()


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    client = Client(dist.get_rank())
    for number in range(10**6):
        loss = client.local_round(100 if number < 3 else 9000)
        client.average()
        print(f"round {number} client {dist.get_rank()} loss {loss:.4f}", flush=True)
        if number == 2 and dist.get_rank() == 0:
            print("ONSET", flush=True)
