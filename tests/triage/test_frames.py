"""Whose code a frame is: the program's own, torch's, another package's, or CPython's, wherever these lie."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfwatch.triage.words.frames import is_user, of_torch, package_of, show, user_frame
from perfwatch.triage.words.vocabulary import COLLECTIVES
from perfwatch_probes.readings import Frame, Stack

WHEELS = "/home/user/.pex/installed_wheels/0/8c1f"


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3/dist-packages/torch/nn/modules/module.py",
        "/opt/conda/lib/python3.11/site-packages/torch/optim/optimizer.py",
        "/home/user/pytorch/torch/cuda/__init__.py",
        f"{WHEELS}/torch-2.6.0-cp311-cp311-linux_x86_64.whl/torch/autograd/graph.py",
        "/opt/libraries/torch/nn/modules/module.py",
        "/work/checkout/torch/utils/data/_utils/worker.py",
    ],
)
def test_torch_is_known_wherever_it_lies(file: str) -> None:
    """Installed, built in a checkout, in the unpacked wheels of a PEX, or put into a folder by ``pip install --target``."""
    frame = Frame("f", file, 1)
    assert of_torch(frame)
    assert not is_user(frame)


def test_a_wheel_of_a_pex_is_a_package() -> None:
    """Its name is the folder's inside the wheel."""
    frame = Frame("get", f"{WHEELS}/requests-2.32.3-py3-none-any.whl/requests/api.py", 59)
    assert not is_user(frame)
    assert package_of(frame) == "requests"


@pytest.mark.parametrize(
    "file",
    [
        "/home/user/torch/train.py",
        "/home/user/torch/utils/data/mine.py",
        "/home/user/my-packages/nn/modules/block.py",
        "/home/user/.pex/unzipped_pexes/1/4f2a/train.py",
        "/tmp/ipykernel_71/2353.py",
    ],
)
def test_a_program_that_is_named_like_a_library_is_the_program(file: str) -> None:
    """A folder called torch is not torch."""
    frame = Frame("f", file, 1)
    assert is_user(frame)
    assert not of_torch(frame)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed here: pip install torch")
def test_every_collective_of_the_torch_that_is_installed_is_known() -> None:
    """They are renamed now and then (2.13: all_gather_single): a rank would be taken for one that is elsewhere."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    text = (Path(torch.origin).parent / "distributed" / "distributed_c10d.py").read_text()
    logged = set(re.findall(r"^@_exception_logger\n(?:@.*\n)*def (\w+)\(", text, re.MULTILINE))

    assert "all_reduce" in logged
    assert logged - COLLECTIVES == {"init_process_group"}


def test_a_forked_worker_is_in_what_it_does_itself_and_not_where_its_parent_forked_it() -> None:
    """Below its own start lies the training loop, in which it never was."""
    library = "/usr/lib/python3.11/"
    frames = (
        ("__getitem__", "/usr/lib/python3.11/site-packages/torchvision/datasets/fakedata.py", 52),
        ("_worker_loop", "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", 349),
        ("run", f"{library}multiprocessing/process.py", 108),
        ("_bootstrap", f"{library}multiprocessing/process.py", 314),
        ("__init__", "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1150),
        ("train", "/home/user/train.py", 40),
    )
    stack = Stack(pid=2, tid=2, frames=tuple(Frame(function=name, file=file, line=line) for name, file, line in frames))

    assert show(user_frame(stack)) == "__getitem__ (fakedata.py:52)"
