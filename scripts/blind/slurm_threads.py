"""FIELD
source: https://github.com/pytorch/pytorch/issues/102498 and https://github.com/NVIDIA-NeMo/Speech/issues/8141 (more intra-op threads than CPUs; a Slurm step with one CPU)
mechanism: the job is bound to one CPU, and the second stage of the training runs each operation on 64 OpenMP threads, which displace one another at every barrier
needs: cpu
ranks: 1
onset: printed
state: slow
cause: oversubscribed_threads
blame: none
twin: none
"""
import os
import time

os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})     # srun --cpus-per-task=1 --cpu-bind=cores

import torch
import torch.nn as nn

STAGES = [
    {"name": "pretrain", "threads": 1, "batch": 2048, "seconds": 9},
    {"name": "finetune", "threads": 64, "batch": 2048, "seconds": 600},     # a whole node of the other partition
]


def run_stage(model, opt, stage):
    torch.set_num_threads(stage["threads"])
    begin = mark = time.time()
    step = 0
    while time.time() - begin < stage["seconds"]:
        x = torch.randn(stage["batch"], 128)
        h = model(x)
        loss = (h * h.sigmoid() - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if time.time() - mark > 3:
            print(f"{stage['name']} step {step} loss {loss.item():.4f} {step / (time.time() - begin):.1f} steps/s", flush=True)
            mark = time.time()


def main():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU()) for _ in range(4)])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for stage in STAGES:
        if stage["name"] == "finetune":
            print("ONSET", flush=True)
        run_stage(model, opt, stage)


if __name__ == "__main__":
    main()
