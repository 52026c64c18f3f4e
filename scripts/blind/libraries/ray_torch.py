"""FIELD
source: own (Ray Train's TorchTrainer with two CPU workers, as its quick start shows it)
mechanism: two workers train a small network wrapped by prepare_model; each reports its loss after every epoch; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: ray_report
"""

import os
import signal
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DEDUP_LOGS"] = "0"
signal.alarm(300)

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    torch.set_num_threads(1)
    net = ray.train.torch.prepare_model(
        torch.nn.Sequential(
            torch.nn.Linear(128, 768), torch.nn.ReLU(), torch.nn.Linear(768, 768), torch.nn.ReLU(),
            torch.nn.Linear(768, 4),
        )
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(1_000_000):
        for _ in range(100):
            x = torch.randn(64, 128)
            loss = torch.nn.functional.cross_entropy(net(x), x[:, :4].argmax(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ray.train.report({"epoch": epoch, "loss": loss.item()})
        if rank == 0 and epoch == 2:
            open(config["mark"], "w").close()


if __name__ == "__main__":
    import threading
    import time

    folder = tempfile.mkdtemp()
    mark = os.path.join(folder, "begun")

    def announce():
        while not os.path.exists(mark):
            time.sleep(0.2)
        print("\nONSET", flush=True)

    threading.Thread(target=announce, daemon=True).start()
    ray.init(num_cpus=3, include_dashboard=False)
    TorchTrainer(
        train,
        train_loop_config={"mark": mark},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=folder),
    ).fit()
