"""Look-alike of a stalled collective: rank 0 validates for minutes while the others wait for it in the barrier."""

import ranks
import stage
import torch
import torch.distributed as dist


@torch.no_grad()
def validate(net, device, batches):
    net.eval()
    right = 0.0
    for _ in range(batches):
        right += net(torch.randn(64, 3, 48, 48, device=device)).argmax(1).float().mean().item()
    net.train()
    return right / batches


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    device = ranks.join(args)
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 23 * 23, 10)
    ).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(cnn)
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(1, 10**9):
        labels = torch.randint(10, (16,), device=device)
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(ddp(torch.randn(16, 3, 48, 48, device=device)), labels).backward()
        sgd.step()
        if step % args.steps == 0:
            if dist.get_rank() == 0:
                stage.onset(rank=0)
                validate(cnn, device, 10**6)
            dist.barrier()


main()
