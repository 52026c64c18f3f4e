"""A training program that ends in a named way, or meets the same and gets over it: ``python dying.py END [alike]``.

Started by the tests under ``perfwatch run``. Every end is the real one: the error that torch, Python or the kernel gives.
"""

# mypy: allow-untyped-calls

import errno
import faulthandler
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch  # noqa: TID253  a program of its own

SIGNALS = {
    "bus_error": signal.SIGBUS,
    "illegal_instruction": signal.SIGILL,
    "sigkill": signal.SIGKILL,
    "terminated": signal.SIGTERM,
}  # beside those that have a program of their own
READ_ONLY = "/sys/devices/system/cpu/present"  # not even root may write it


class Shards(torch.utils.data.Dataset[torch.Tensor]):
    """A data set whose worker is there for two seconds, so that it is seen, and does something in the end."""

    def __init__(self, last: Callable[[], object]) -> None:
        self.last = last

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.2)
        if index == 9:
            self.last()
        return torch.ones(4)


def load(last: Callable[[], object], timeout: float = 0.0) -> None:
    """Read the data with one worker."""
    for _ in torch.utils.data.DataLoader(Shards(last), batch_size=4, num_workers=1, timeout=timeout):
        pass


def segmentation_fault() -> None:
    """Read address 0."""
    import ctypes

    ctypes.string_at(0)


def permission_denied() -> None:
    """Write what may only be read."""
    open(READ_ONLY, "w").close()


def missing_file() -> None:
    """Open a shard that is not there."""
    open("/data/no/such/shard-0007.bin").close()


def missing_module() -> None:
    """Import what is not installed."""
    import no_such_extension  # type: ignore[import-not-found]  # noqa: F401


def shape_mismatch() -> None:
    """A layer of another width than its input."""
    torch.nn.Linear(128, 10)(torch.ones(4, 64))


def dtype_mismatch() -> None:
    """A layer of another precision than its input."""
    torch.nn.Linear(64, 10)(torch.ones(4, 64, dtype=torch.float64))


def device_mismatch() -> None:
    """Tensors on two devices."""
    torch.ones(4, device="meta") + torch.ones(4)


def checkpoint_mismatch() -> None:
    """The weights of another model."""
    torch.nn.Linear(8, 8).load_state_dict(torch.nn.Conv2d(1, 1, 3).state_dict())


def torn_checkpoint() -> None:
    """A checkpoint that was cut short."""
    path = Path(f"/tmp/torn-{os.getpid()}.pt")
    torch.save(torch.nn.Linear(64, 64).state_dict(), path)
    path.write_bytes(path.read_bytes()[:2000])
    try:
        torch.load(path)
    finally:
        path.unlink()


def nan_guard() -> None:
    """A loss of NaN, found in backward."""
    weight = torch.zeros(4, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        torch.sqrt(weight * 0).sum().mul(torch.tensor(0.0)).backward()


def disk_full() -> None:
    """A file on a full device."""
    with open("/dev/full", "w") as file:
        file.write("x" * 65536)


def quota_exceeded() -> None:
    """What the kernel answers when the quota is used up: not even root can cause it without a quota."""
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/ann/ckpt.pt")


def storage_error() -> None:
    """What the kernel answers when an NFS server has lost the file."""
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/mnt/data/shard-7")


def host_memory_refused() -> None:
    """More memory than any machine has."""
    torch.empty(10**15)


def resource_limit() -> None:
    """More files than may be open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    print([open(os.devnull) for _ in range(100)])


def division_by_zero() -> None:
    """An epoch without a batch."""
    print(1.0 / len([]))


def failed_assertion() -> None:
    """A check of the program's own."""
    assert torch.ones(1).item() == 2, "the batch must be even"


def runtime_error() -> None:
    """Backward twice."""
    loss = torch.ones(4, requires_grad=True).square().sum()
    loss.backward()
    loss.backward()


def python_exception() -> None:
    """A key that is not there."""
    print({"learning_rate": 1e-3}["lr"])


def unsupported_gpu() -> None:
    """A device that this build or this machine does not have."""
    torch.ones(1).cuda() if not torch.cuda.is_available() else torch.ones(1).to("cuda:99")


def compile_error() -> None:
    """A graph that must be whole and cannot be."""

    @torch.compile(fullgraph=True, backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        print("inside")
        torch._dynamo.graph_break()
        return x + 1

    step(torch.ones(4))


def failed_child() -> None:
    """A helper that fails."""
    subprocess.run(["false"], check=True)


def unreachable_service() -> None:
    """A hub that does not listen."""
    import urllib.request

    urllib.request.urlopen(f"http://127.0.0.1:{_free_port()}/model")


def rendezvous_timeout() -> None:
    """One of two ranks comes."""
    place = f"tcp://127.0.0.1:{_free_port()}"
    torch.distributed.init_process_group("gloo", place, timeout=timedelta(seconds=2), rank=0, world_size=2)


def address_in_use() -> None:
    """The port of the store is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        torch.distributed.TCPStore("127.0.0.1", taken.getsockname()[1], 1, True)  # type: ignore[attr-defined]


def nccl_timeout() -> None:
    """Rank 1 does not come to an all_reduce, and rank 0 gives up: gloo's own timeout, which does without a watchdog."""
    port = _free_port()
    if os.fork() == 0:
        _meet(1, port)
        time.sleep(8)
        os._exit(0)
    _meet(0, port)
    torch.distributed.all_reduce(torch.ones(4))


def dead_data_worker() -> None:
    """A worker is killed."""
    load(lambda: os.kill(os.getpid(), signal.SIGKILL))


def data_timeout() -> None:
    """A worker gives no batch any more."""
    load(lambda: time.sleep(60), timeout=3.0)


def crashed_data_worker() -> None:
    """A worker's native code fails."""
    load(segmentation_fault)


def interrupted() -> None:
    """Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in its background
    signal.raise_signal(signal.SIGINT)


def abort() -> None:
    """Native code gives up."""
    os.abort()


def _meet(rank: int, port: int) -> None:
    place = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", place, timeout=timedelta(seconds=3), rank=rank, world_size=2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(name: str) -> None:
    if name in SIGNALS:
        os.kill(os.getpid(), SIGNALS[name])
        time.sleep(5)
    globals()[name]()


def _train(steps: int, first: int = 0) -> None:
    net = torch.nn.Linear(16, 16)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(first, first + steps):
        sgd.zero_grad()
        loss = net(torch.ones(4, 16)).square().mean()
        loss.backward()
        sgd.step()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


def main() -> None:
    """Train, meet the end, and train on where it is only alike."""
    name, alike = sys.argv[1], sys.argv[2:] == ["alike"]
    torch.set_num_threads(1)
    faulthandler.enable()
    _train(5)
    if not alike:
        _end(name)
        return
    child = os.fork()  # whatever happens there, this process gets over it
    if child == 0:
        try:
            _end(name)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    print(f"{name} was met; going on without it", flush=True)
    _train(30, first=5)


if __name__ == "__main__":
    main()
