"""FIELD
source: https://github.com/NVIDIA/nccl/issues/479 and https://github.com/pytorch/PiPPy/issues/969 (the order of sends and receives makes a circle)
mechanism: from the second phase on, every rank receives from its left neighbour before it sends to its right one, so all three wait in a receive that nobody serves
needs: cpu
ranks: 3
onset: printed
state: hung
cause: mismatched_collective, wedged_collective, unknown
blame: none
twin: none
"""
import datetime, time
import torch, torch.nn as nn, torch.distributed as dist

class Gossip:
    """Averages the parameters with those of the neighbours on a ring."""
    def __init__(self, model, rank, world):
        self.params = list(model.parameters())
        self.left, self.right, self.rank = (rank - 1) % world, (rank + 1) % world, rank

    def flat(self):
        return torch.cat([p.detach().flatten() for p in self.params])

    def blend(self, mine, theirs, share):
        mixed, at = (1 - share) * mine + share * theirs, 0
        for p in self.params:
            p.data.copy_(mixed[at:at + p.numel()].view_as(p))
            at += p.numel()

    def push(self):
        mine = self.flat()
        theirs = torch.empty_like(mine)
        sending = dist.isend(mine, self.right)
        dist.recv(theirs, self.left)
        sending.wait()
        self.blend(mine, theirs, 0.5)

    def chain(self):
        theirs = torch.empty_like(self.flat())
        dist.recv(theirs, self.left)
        self.blend(self.flat(), theirs, 0.5)
        dist.send(self.flat(), self.right)

def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 40))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    gossip = Gossip(model, rank, world)
    rounds, exact_from = 10**6, 60
    for r in range(rounds):
        for _ in range(10):
            x = torch.randn(64, 40)
            loss = (model(x) - x.cumsum(1) / 6).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
            time.sleep(0.01)
        if r == exact_from and rank == 0:
            print('ONSET', flush=True)
        if r < exact_from:
            gossip.push()
        else:
            gossip.chain()                     # each rank passes on what it has already mixed
        if rank == 0 and r % 10 == 0:
            print(f'round {r} loss {loss.item():.4f}', flush=True)

if __name__ == '__main__':
    main()
