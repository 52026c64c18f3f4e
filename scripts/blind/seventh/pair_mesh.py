"""FIELD
source: sgl-project/sglang#15805 and distdl/distdl#87 (new_group is called by the members only; it needs every rank)
mechanism: plain data parallelism of three ranks; in the second stage ranks 0 and 1 split the output layer and create
    a group of two for that, which waits for every rank of the world (TORCH_DIST_INIT_BARRIER=1); rank 2 does not
    create it and goes on to the all-reduce
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: blocked_rendezvous, stalled_collective, mismatched_collective
blame: rank 2
twin: none
"""
import argparse
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time


def launch(world):
    store = tempfile.mktemp(prefix="mesh_")
    children = [
        subprocess.Popen([sys.executable, "-u", __file__, "--rank", str(r), "--world", str(world), "--store", store])
        for r in range(world)
    ]
    codes = [child.wait() for child in children]
    sys.exit(max(codes))


def run(rank, world, path):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # no rank may use a group that another has yet to create

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world, timeout=datetime.timedelta(hours=3)
    )
    vocab, hidden = 512, 96
    emb = torch.randn(vocab, hidden).mul_(0.05).requires_grad_()
    rnn = torch.nn.GRU(hidden, hidden, batch_first=True)
    out = torch.randn(vocab, hidden).mul_(0.05).requires_grad_()
    params = [emb, out, *rnn.parameters()]
    opt = torch.optim.Adam(params, 1e-3)
    mesh = None

    def average():
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        flat /= world
        at = 0
        for p in params:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()

    def logits(state):
        if mesh is None:
            return state @ out.T
        half = out.chunk(2)[dist.get_rank(mesh)]
        parts = [torch.empty(*state.shape[:-1], vocab // 2) for _ in range(2)]
        mine = state @ half.T
        dist.all_gather(parts, mine.detach(), group=mesh)
        parts[dist.get_rank(mesh)] = mine
        return torch.cat(parts, -1)

    generator = torch.Generator().manual_seed(rank + 1)
    began, step, stage = time.monotonic(), 0, 1
    while True:
        # the stage must change in the same step everywhere, so it is agreed upon
        late = torch.tensor([float(time.monotonic() - began > 14)])
        dist.all_reduce(late, dist.ReduceOp.MAX)
        if stage == 1 and late.item():
            stage = 2
            if rank == 0:
                print(f"step {step}: stage 2, the output layer is split", flush=True)
                print("ONSET", flush=True)
            if rank < 2:
                mesh = dist.new_group([0, 1])
        tokens = torch.randint(vocab, (8, 33), generator=generator)
        state, _ = rnn(emb[tokens[:, :-1]])
        loss = F.cross_entropy(logits(state).flatten(0, 1), tokens[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        average()
        opt.step()
        time.sleep(0.02)
        step += 1
        if rank == 0 and step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world", type=int, default=3)
    parser.add_argument("--store", default=os.devnull)
    options = parser.parse_args()
    launch(options.world) if options.rank is None else run(options.rank, options.world, options.store)
