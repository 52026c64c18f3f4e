"""FIELD
source: pytorch/torchdistx#56 (GossipGraD chooses the topology from a per-process counter that does not count the same on all ranks)
mechanism: the partner of each exchange comes from a counter in each process; rank 2 rebuilds its mixer after a bad loss, its counter starts again, and the four ranks wait for partners that wait for others
needs: cpu
ranks: 4
onset: printed
state: hung
cause: mismatched_collective, stalled_collective, wedged_collective
blame: none
twin: none
"""
import datetime

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
TOPOLOGIES = [{0: 1, 1: 0, 2: 3, 3: 2}, {0: 2, 2: 0, 1: 3, 3: 1}, {0: 3, 3: 0, 1: 2, 2: 1}]


class Mixer:
    def __init__(self, params):
        self.params = list(params)
        self.iteration = 0

    def mix(self):
        partner = TOPOLOGIES[self.iteration % len(TOPOLOGIES)][dist.get_rank()]
        self.iteration += 1
        mine = torch.cat([p.detach().flatten() for p in self.params])
        theirs = torch.empty_like(mine)
        sent = dist.isend(mine, partner)
        dist.recv(theirs, partner)
        sent.wait()
        mean = (mine + theirs) / 2
        for p, part in zip(self.params, mean.split([p.numel() for p in self.params])):
            p.data.copy_(part.view_as(p))


def make_batch(step, rank):
    x = torch.randn(64, 100)
    y = (x[:, :10].sum(1, keepdim=True) > 0).float()
    if rank == 2 and step == 961:
        x = x * -400
    return x, y


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 1))
    snapshot = {k: v.clone() for k, v in net.state_dict().items()}
    opt, mixer = torch.optim.SGD(net.parameters(), lr=0.02), Mixer(net.parameters())
    usual = None
    for step in range(100000):
        x, y = make_batch(step, rank)
        loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)
        if usual is not None and loss.item() > 20 * usual:
            print(f"rank {rank}: loss {loss.item():.1f}, back to the last good weights", flush=True)
            net.load_state_dict(snapshot)
            opt, mixer = torch.optim.SGD(net.parameters(), lr=0.01), Mixer(net.parameters())
            print("ONSET", flush=True)
        else:
            usual = loss.item() if usual is None else 0.95 * usual + 0.05 * loss.item()
            opt.zero_grad()
            loss.backward()
            opt.step()
        mixer.mix()
        if step % 60 == 0:
            snapshot = {k: v.clone() for k, v in net.state_dict().items()}
            if rank == 0:
                print(f"step {step} loss {usual:.4f}", flush=True)


if __name__ == "__main__":
    main()
