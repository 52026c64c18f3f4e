"""Which GPU belongs to which process: by the driver's list, device files, environment, or not at all."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import structs

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu_binding import GpuBindingProbe, bind
from perfwatch_probes.gpu_files import HOST_PID_NAMESPACE, DeviceFiles, device_files, local_pid
from perfwatch_probes.gpu_visible import visible
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Gpu, GpuProcess, Process

CARDS = [Gpu(uuid=f"GPU-{letter}", index=index, name="NVIDIA H200", minor=index) for index, letter in enumerate("abcd")]
PARTS = [
    Gpu(uuid=f"MIG-{letter}", index=0, name="NVIDIA H200 MIG 1g.18gb", parent_uuid="GPU-a", minor=0) for letter in "xy"
]


def process(local_rank: int | None = None, **environment: str) -> Process:
    """A rank."""
    return Process(
        pid=100, start_ticks=1, parent_pid=1, name="python", command=(), local_rank=local_rank, environment=environment
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("GPU-a", "GPU-b", "GPU-c", "GPU-d")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ("GPU-c", "GPU-a")),
        ({"CUDA_VISIBLE_DEVICES": " 3 , 1"}, ("GPU-d", "GPU-b")),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, ("GPU-b",)),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a,GPU-b"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,1"}, ("GPU-b",)),
        ({"CUDA_VISIBLE_DEVICES": "1gpu2,+2ampere"}, ("GPU-b", "GPU-c")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-d,GPU-b"}, ("GPU-d", "GPU-b")),
        ({"CUDA_VISIBLE_DEVICES": "gpu-D"}, ("GPU-d",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-c,GPU-d", "CUDA_VISIBLE_DEVICES": "1"}, ("GPU-d",)),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1"}, ("GPU-b",)),
    ],
)
def test_the_environment_names_cards_as_the_driver_reads_it(
    environment: Mapping[str, str], expected: tuple[str, ...]
) -> None:
    """Numbers, UUIDs and beginnings of UUIDs; the list ends where an entry names no card, or two; a card named twice is none."""
    assert visible(environment, CARDS) == expected


def test_numbers_are_no_names_on_a_machine_with_unlike_cards() -> None:
    """CUDA counts the fastest first, unless it is told to count by PCI bus; UUIDs hold always."""
    unlike = [*CARDS[:1], Gpu(uuid="GPU-b", index=1, name="NVIDIA L4", minor=1)]

    assert visible({"CUDA_VISIBLE_DEVICES": "1"}, unlike) is None
    assert visible({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, unlike) == ("GPU-b",)
    assert visible({"CUDA_VISIBLE_DEVICES": "GPU-b"}, unlike) == ("GPU-b",)


def test_of_a_card_that_is_cut_up_a_process_sees_one_part() -> None:
    """Whatever it was told, or the first, also by the number of the card; a card that has no part yet cannot be used."""
    cut = structs.replace(CARDS[0], mig=True)
    expected = {"MIG-y": ("MIG-y",), "MIG-y,MIG-x": ("MIG-y",), "0": ("MIG-x",), "1": ("GPU-b",), "GPU-b": ("GPU-b",)}

    assert visible({}, [*CARDS[:1], *PARTS]) == ("MIG-x",)
    assert {told: visible({"CUDA_VISIBLE_DEVICES": told}, [cut, *CARDS[1:], *PARTS]) for told in expected} == expected
    assert visible({"CUDA_VISIBLE_DEVICES": "0"}, [cut, *CARDS[1:]]) == ()


def test_a_part_named_by_its_instances_is_known_only_where_the_driver_names_it_so() -> None:
    """The old form; a driver that names parts by UUIDs of their own does not say which instances they are."""
    named = "MIG-GPU-a/1/0"

    assert visible({"CUDA_VISIBLE_DEVICES": named}, [*CARDS[:1], *PARTS]) is None
    assert visible({"CUDA_VISIBLE_DEVICES": named}, [*CARDS[:1], structs.replace(PARTS[0], uuid=named)]) == (named,)


def test_a_lost_card_that_cannot_say_who_it_is_is_nobodys() -> None:
    """Numbers before its own are names; those after it may have been counted with it or without, so no card is guessed."""
    unknown = Gpu(uuid="gpu 1", index=1, name="", lost=True)
    gpus = [CARDS[0], unknown, *CARDS[2:]]
    files = DeviceFiles(True, frozenset(range(4)))

    assert [visible({"CUDA_VISIBLE_DEVICES": told}, gpus) for told in ("0", "1", "2")] == [("GPU-a",), None, None]
    assert visible({}, gpus) == ("GPU-a", "GPU-c", "GPU-d")
    assert (bind(process(1), gpus, [], files).uuids, bind(process(1), CARDS, [], files).uuids) == ((), ("GPU-b",))
    assert bind(process(1), gpus, [], DeviceFiles(True, frozenset({3}))).uuids == ("GPU-d",)


def test_the_drivers_own_list_is_believed_first() -> None:
    """Even against the environment, which the program may have changed after its start."""
    contexts = [GpuProcess(uuid="GPU-c", pid=100, local_pid=100), GpuProcess(uuid="GPU-a", pid=7, local_pid=7)]

    found = bind(process(CUDA_VISIBLE_DEVICES="0"), CARDS, contexts, DeviceFiles(True, frozenset({0, 1, 2, 3})))

    assert (found.uuids, found.how, found.cuda) == (("GPU-c",), "nvml", True)
    assert found.visible == ("GPU-c",)


def test_several_contexts_come_in_the_order_of_the_process() -> None:
    """Model parallelism in one process: its device 0 is the first."""
    contexts = [GpuProcess(uuid=uuid, pid=100, local_pid=100) for uuid in ("GPU-a", "GPU-d")]

    assert bind(process(CUDA_VISIBLE_DEVICES="3,0"), CARDS, contexts, None).uuids == ("GPU-d", "GPU-a")


def test_a_context_of_another_namespace_or_one_that_is_gone_binds_nobody() -> None:
    """The pid on the host means nothing here, and what is over is over."""
    contexts = [
        GpuProcess(uuid="GPU-a", pid=100, local_pid=None),
        GpuProcess(uuid="GPU-b", pid=100, local_pid=100, gone=True),
    ]

    assert bind(process(), CARDS, contexts, None).how == ""


def test_one_device_file_names_the_card() -> None:
    """A container that was given one card, whatever its number inside."""
    found = bind(process(CUDA_VISIBLE_DEVICES="0"), CARDS, [], DeviceFiles(True, frozenset({3})))

    assert (found.uuids, found.visible, found.how) == (("GPU-d",), ("GPU-d",), "device_files")


def test_with_every_device_file_open_the_environment_decides() -> None:
    """CUDA opens more files than a process uses."""
    found = bind(process(CUDA_VISIBLE_DEVICES="2"), CARDS, [], DeviceFiles(True, frozenset(range(4))))

    assert found.uuids == ("GPU-c",)


def test_the_environment_alone_is_weaker_and_says_so() -> None:
    """Another user's files cannot be read."""
    found = bind(process(CUDA_VISIBLE_DEVICES="2"), CARDS, [], None)

    assert (found.uuids, found.how, found.cuda) == (("GPU-c",), "environment", None)


def test_a_local_rank_is_a_guess_among_what_is_visible() -> None:
    """torchrun gives every rank all cards and a number."""
    found = bind(process(1, CUDA_VISIBLE_DEVICES="2,3"), CARDS, [], DeviceFiles(True, frozenset(range(4))))

    assert (found.uuids, found.how) == (("GPU-d",), "local_rank")


def test_what_cannot_be_known_is_not_guessed() -> None:
    """Four cards, no rank, no list: none is named, and all that it may use are."""
    found = bind(process(), CARDS, [], DeviceFiles(True, frozenset(range(4))))

    assert (found.uuids, found.how) == ((), "")
    assert found.visible == ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


def test_a_process_without_cuda_has_no_card() -> None:
    """A launcher inherits the environment of its ranks and uses nothing."""
    found = bind(process(0, CUDA_VISIBLE_DEVICES="0"), CARDS, [], DeviceFiles(False, frozenset()))

    assert (found.uuids, found.how, found.cuda) == ((), "", False)


def test_whom_the_driver_does_not_list_has_no_card() -> None:
    """Where its list can be believed: a logger that asks NVML holds the same files as a program that computes."""
    contexts = [GpuProcess(uuid="GPU-a", pid=7, local_pid=7)]
    files = DeviceFiles(True, frozenset({0, 1, 2, 3}))

    assert bind(process(0), CARDS, contexts, files, complete=True).cuda is False
    assert bind(process(0), CARDS, contexts, files, complete=False).how == "local_rank"


def test_device_files_are_read_from_the_links(tmp_path: Path) -> None:
    """The control file alone is not CUDA."""
    holds(tmp_path, 100, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia11", "/dev/null", "pipe:[5]")
    holds(tmp_path, 200, "/dev/nvidiactl", "/dev/nvidia0", "/tmp/dev/nvidia3")
    filesystem = Filesystem(proc=tmp_path)

    assert device_files(filesystem, 100) == DeviceFiles(True, frozenset({0, 11}))
    assert device_files(filesystem, 200) == DeviceFiles(False, frozenset({0}))
    with pytest.raises(Unavailable):
        device_files(filesystem, 300)


def test_a_binding_is_told_when_it_changes(tmp_path: Path) -> None:
    """The same thing twice is not news; a context that appears is."""
    holds(tmp_path, 100, "/dev/nvidia-uvm", "/dev/nvidia1")
    probe = GpuBindingProbe(Filesystem(proc=tmp_path))
    contexts: list[GpuProcess] = []

    first, second = (probe.look([process()], CARDS, contexts) for _ in range(2))
    contexts.append(GpuProcess(uuid="GPU-b", pid=100, local_pid=100))
    third = probe.look([process()], CARDS, contexts)

    assert [one.how for one in first] == ["device_files"]
    assert second == []
    assert [one.how for one in third] == ["nvml"]


def test_a_list_that_has_become_empty_is_complete(tmp_path: Path) -> None:
    """A driver that has listed somebody, and now lists nobody, says that nobody has a context: open files are none."""
    holds(tmp_path, 100, "/dev/nvidia-uvm", "/dev/nvidia1")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(HOST_PID_NAMESPACE)
    probe = GpuBindingProbe(Filesystem(proc=tmp_path))

    told = [
        [one.cuda for one in probe.look([process()], CARDS, contexts)]
        for contexts in ([], [GpuProcess(uuid="GPU-b", pid=7, local_pid=7)], [])
    ]

    assert told == [[True], [False], []]


def test_where_no_card_is_described_only_who_uses_one_is_told(tmp_path: Path) -> None:
    """A container with the card's files, without the driver's library; once cards are described all are told."""
    holds(tmp_path, 100, "/dev/nvidia-uvm", "/dev/nvidia1")
    holds(tmp_path, 200, "/dev/null")
    probe = GpuBindingProbe(Filesystem(proc=tmp_path))
    job = [process(), structs.replace(process(), pid=200)]

    assert [(one.pid, one.cuda, one.uuids) for one in probe.look(job, [], [])] == [(100, True, ())]
    assert [one.pid for one in probe.look(job, CARDS, [])] == [100, 200]


def test_pids_of_the_driver_are_ours_in_the_hosts_namespace_only(tmp_path: Path) -> None:
    """In a container a number is believed only of a process that holds the file of the card on which it is listed."""
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(HOST_PID_NAMESPACE)
    holds(tmp_path, 100, "/dev/nvidia0")
    holds(tmp_path, 200, "/dev/null")
    filesystem = Filesystem(proc=tmp_path)

    assert local_pid(filesystem, 4711, None) == 4711

    (tmp_path / "self/ns/pid").unlink()
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026532000]")

    assert [local_pid(filesystem, pid, 0) for pid in (100, 200, 4711)] == [100, None, None]
    assert [local_pid(filesystem, 100, minor) for minor in (3, None)] == [None, None]


def holds(proc: Path, pid: int, *targets: str) -> None:
    """A process with these open files."""
    folder = proc / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)
