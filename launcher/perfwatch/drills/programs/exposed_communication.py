"""A large model and a tiny batch: most of each step goes into the reduction of the gradients, and nothing hides it."""

import ranks
import stage
import torch
import torch.distributed as dist

WIDTHS = {
    "gloo": {"loud": 2048, "quiet": 1448, "masked": 1024},
    "nccl": {"loud": 16384, "quiet": 11584, "masked": 8192},
}


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    device = ranks.join(args)
    width = WIDTHS[args.backend][args.strength]
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width, bias=False).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-4)
    batch = torch.randn(2, width, device=device)
    for step in range(10**9):
        if step == args.steps and dist.get_rank() == 0:
            stage.onset()
        sgd.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        sgd.step()
        if step % 20 == 0:
            print(step, loss.item(), flush=True)


main()
