"""FIELD
source: own (ranks that broadcast from the best replica disagree on which one that is)
mechanism: from round 8 on every rank compares its own training loss with the validation losses of the others, so each takes itself for the best and calls broadcast with another src
needs: cpu
ranks: 3
onset: printed
state: hung
cause: mismatched_collective, wedged_collective
blame: adopt_best (population.py)
twin: none
"""
import datetime
import torch, torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.set_num_threads(1)


def make_net():
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))


class Member:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        torch.manual_seed(100 + rank)
        self.lr = 10 ** (-3 + 0.2 * rank)
        self.net = make_net()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=self.lr)
        self.x, self.y = torch.randn(384, 64), torch.randint(0, 10, (384,))
        shared = torch.Generator().manual_seed(0)
        self.val_x = torch.randn(512, 64, generator=shared)
        self.val_y = torch.randint(0, 10, (512,), generator=shared)
        self.train_loss = float('inf')

    def train_round(self, steps=60):
        for _ in range(steps):
            pick = torch.randint(0, len(self.x), (128,))
            loss = nn.functional.cross_entropy(self.net(self.x[pick]), self.y[pick])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.train_loss = loss.item()

    @torch.no_grad()
    def score(self):
        return nn.functional.cross_entropy(self.net(self.val_x), self.val_y).item()

    def adopt_best(self, scores, round_no):
        if round_no >= 8:
            scores[self.rank] = self.train_loss
        best = int(scores.argmin())
        flat = parameters_to_vector(self.net.parameters()).detach().clone()
        if self.rank == 0 and round_no == 8:
            print('ONSET', flush=True)
        dist.broadcast(flat, src=best)
        vector_to_parameters(flat, self.net.parameters())
        return best


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    me = Member(dist.get_rank(), dist.get_world_size())
    for round_no in range(10000):
        me.train_round()
        scores = torch.zeros(me.world)
        scores[me.rank] = me.score()
        dist.all_reduce(scores)
        best = me.adopt_best(scores, round_no)
        print(f'member {me.rank} round {round_no}: loss {me.train_loss:.3f}, best is {best}', flush=True)


main()
