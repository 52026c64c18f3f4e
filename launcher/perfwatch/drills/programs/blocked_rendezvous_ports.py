"""Two ranks that were started by hand; the second was told another MASTER_PORT, where nobody listens."""

import datetime
import os
import socket
import subprocess
import sys

import stage


def start_both() -> None:
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (first, second)]
    children = []
    for rank, port in enumerate(ports):
        told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
        names = {**os.environ, **told, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        children.append(subprocess.Popen([sys.executable, *sys.argv], env=names))
    for child in children:
        child.wait()


def train() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    stage.onset(rank=int(os.environ["RANK"]))
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=5))


if __name__ == "__main__":
    stage.arguments(__doc__)
    if "RANK" in os.environ:
        train()
    else:
        start_both()
