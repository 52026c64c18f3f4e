"""FIELD
source: pytorch/pytorch#81291 (new_group has to be called by all ranks, also by those that are not members)
mechanism: ranks 0 and 1, which hold validation data, create a group of all ranks for evaluation when the warm-up ends; ranks 2 and 3 do not call new_group and wait in the gradient all-reduce of the next step
needs: cpu
ranks: 4
onset: printed
state: hung
cause: stalled_collective, mismatched_collective, blocked_rendezvous
blame: none
twin: none
"""
import argparse, datetime
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
LIMIT = datetime.timedelta(minutes=40)


class Trainer:
    def __init__(self, args):
        self.args, self.rank = args, dist.get_rank()
        torch.manual_seed(7)
        net = nn.Sequential(nn.Conv1d(4, 32, 5, padding=2), nn.GELU(), nn.Conv1d(32, 32, 5, padding=2), nn.GELU(),
                            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 6))
        self.net = DistributedDataParallel(net)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.eval_group = None

    def batch(self, n):
        x = torch.randn(n, 4, 96)
        return x, (x.mean((1, 2)) * 30).clamp(0, 5).long()

    def train_step(self):
        x, y = self.batch(48)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def setup_evaluation(self):
        self.has_validation = self.rank < self.args.eval_shards
        if self.has_validation:
            if self.rank == 0:
                print(f'validation in {self.args.eval_shards} shards\nONSET', flush=True)
            self.eval_group = dist.new_group(timeout=LIMIT)

    @torch.no_grad()
    def evaluate(self):
        if self.eval_group is None:
            return
        x, y = self.batch(256)
        hits = (self.net.module(x).argmax(1) == y).sum()
        dist.all_reduce(hits, group=self.eval_group)
        if self.rank == 0:
            print('accuracy', hits.item() / (256 * self.args.eval_shards), flush=True)

    def fit(self):
        for step in range(self.args.steps):
            if step == self.args.warmup:
                self.setup_evaluation()
            loss = self.train_step()
            if step % 100 == 0:
                self.evaluate()
                if self.rank == 0:
                    print(f'step {step} loss {loss:.4f}', flush=True)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--steps', type=int, default=500000)
    parser.add_argument('--warmup', type=int, default=250)
    parser.add_argument('--eval-shards', type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group('gloo', timeout=LIMIT)
    Trainer(args).fit()
