"""FIELD
source: own (population-based training with a pause between rounds for the other users of the machine)
mechanism: two members train for 25 s, exchange scores, the weaker one copies the stronger one, and both rest for 8 s before the next round
needs: cpu
ranks: 2
onset: printed
state: healthy, busy
cause: cpu_training, balanced, waiting_on_work, evaluating
blame: none
twin: none
"""
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)


class Member:
    def __init__(self, rank):
        torch.manual_seed(rank)
        self.model = nn.Sequential(nn.Linear(100, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 1))
        self.lr = 10 ** random.Random(rank).uniform(-3.5, -2)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=self.lr)

    def batch(self, n):
        x = torch.randn(n, 100)
        return x, torch.sin(x[:, :5]).sum(1, keepdim=True)

    def train(self, seconds):
        until, steps = time.time() + seconds, 0
        while time.time() < until:
            x, y = self.batch(128)
            loss = (self.model(x) - y).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            steps += 1
        return steps

    @torch.no_grad()
    def score(self):
        x, y = self.batch(20_000)
        return (self.model(x) - y).pow(2).mean().item()

    def exploit(self, source):
        for p in self.model.state_dict().values():
            dist.broadcast(p, src=source)
        if dist.get_rank() != source:
            self.lr *= random.choice([0.8, 1.25])
            for group in self.opt.param_groups:
                group["lr"] = self.lr


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    member = Member(rank)
    for round_, (seconds, rest) in enumerate([(4, 0), (4, 0)] + [(25, 8)] * 13):
        if round_ == 2 and rank == 0:
            print("ONSET", flush=True)
        steps = member.train(seconds)
        scores = [None, None]
        dist.all_gather_object(scores, (member.score(), member.lr))
        best = min(range(2), key=lambda r: scores[r][0])
        member.exploit(best)
        if rank == 0:
            print(f"round {round_} {steps} steps, scores {[round(s, 4) for s, _ in scores]} best {best}", flush=True)
        time.sleep(rest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
