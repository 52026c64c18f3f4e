"""FIELD
source: ray-project/ray#50874 and ray-project/ray#58870 (training hangs if not all workers call ray.train.report the same number of times)
mechanism: two workers under TorchTrainer; after some epochs worker 0 alone reports a checkpoint, which waits for the report of every
    worker, while worker 1 waits in the gradient exchange of its next step
needs: none
ranks: 1
onset: printed
state: hung
cause: stalled_collective, mismatched_collective, unknown
blame: rank 0, train (scripts/blind/libraries/ray_report.py)
twin: ray_torch
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
        if rank == 0 and epoch == 4:
            open(config["mark"], "w").close()
            with tempfile.TemporaryDirectory() as folder:
                torch.save(net.module.state_dict(), os.path.join(folder, "model.pt"))
                ray.train.report({"epoch": epoch}, checkpoint=ray.train.Checkpoint.from_directory(folder))


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
