"""FIELD
source: ray-project/ray#42008 and ray-project/ray#41973 (StreamSplitDataIterator is blocked waiting on other clients: one worker starts its
    next epoch over the data and the others do not)
mechanism: two workers read streaming splits of one Ray data set; worker 0 starts another pass over its split after three epochs, which
    begins only when all workers ask for it; worker 1 has left its loop and waits in a barrier
needs: none
ranks: 1
onset: printed
state: hung
cause: stalled_collective, mismatched_collective, unknown
blame: rank 0, rank 1, train (scripts/blind/libraries/ray_split.py)
twin: ray_torch
"""

import os
import signal
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DEDUP_LOGS"] = "0"
signal.alarm(300)

import ray
import ray.data
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
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(4 if rank == 0 else 3):
        if epoch == 3:
            open(config["mark"], "w").close()
        for batch in shard.iter_torch_batches(batch_size=64):
            x = batch["data"].float()
            loss = torch.nn.functional.cross_entropy(net(x), x[:, :4].argmax(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.distributed.barrier()


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
        datasets={"train": ray.data.range_tensor(20_000, shape=(128,))},
        train_loop_config={"mark": mark},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=folder),
    ).fit()
