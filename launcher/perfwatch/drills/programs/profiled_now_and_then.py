"""Look-alike of a profiler that was left on: it has a schedule, and records two steps out of some thousand."""

import stage
import torch
from torch.profiler import ProfilerActivity, profile, schedule

args = stage.arguments(__doc__)
torch.set_num_threads(1)
encoder = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.SiLU(), torch.nn.Linear(1024, 512))
sgd = torch.optim.SGD(encoder.parameters(), lr=1e-3, momentum=0.9)
seldom = schedule(wait=3000, warmup=1, active=2)
with profile(activities=[ProfilerActivity.CPU], schedule=seldom, on_trace_ready=lambda _: None) as recorder:
    for step in range(10**9):
        if step == args.steps:
            stage.onset()
        sgd.zero_grad()
        encoder(torch.randn(256, 512)).square().mean().backward()
        sgd.step()
        recorder.step()
