"""After a while the trainer asks the key-value store for a config that the coordinator should have published, and
waits.
"""

import datetime

import stage
import torch
import torch.distributed as dist


class Worker:
    def __init__(self):
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(days=1))
        self.store.set("config/0", "0.1")
        self.net = torch.nn.Linear(500, 500)

    def learning_rate(self, phase):
        return float(self.store.get(f"config/{phase}"))

    def phase(self, number, steps):
        sgd = torch.optim.SGD(self.net.parameters(), lr=self.learning_rate(number))
        for _ in range(steps):
            sgd.zero_grad()
            self.net(torch.randn(200, 500)).var().backward()
            sgd.step()


options = stage.arguments()
torch.set_num_threads(1)
worker = Worker()
worker.phase(0, options.steps)
stage.onset()
worker.phase(1, options.steps)
