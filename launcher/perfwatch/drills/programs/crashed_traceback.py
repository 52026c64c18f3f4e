"""A shape error in the middle of the run: exit code 1 and a traceback."""

import stage
import torch


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(128, 256), torch.nn.Linear(256, 10)

    def forward(self, images):
        return self.head(self.body(images.flatten(1)))


def batches(steps):
    for n in range(10**6):
        if n == steps * 20:
            stage.onset()
        yield torch.randn(64, 128 if n < steps * 20 else 129)


torch.set_num_threads(1)
net = Classifier()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in batches(stage.arguments().steps):
    opt.zero_grad()
    net(batch).logsumexp(1).mean().backward()
    opt.step()
