"""Helper processes at the limit of open files: none is started, that is said, and what was opened for it is closed."""

import os
from pathlib import Path

import pytest

from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.errand import Errand
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import GpuProbe
from perfwatch_probes.probe import Unavailable
from tests.limits import open_files, room_for
from tests.nvml_layer import machine


@pytest.mark.parametrize("files", [0, 1, 2, 3])
def test_where_too_many_files_are_open_no_reader_is_started_and_none_is_left_open(files: int) -> None:
    """Its two pipes take four: the first or the second of them fails."""
    before = open_files()
    with room_for(files), pytest.raises(Unavailable, match="no reader can be started: Too many open files") as caught:
        KillableChild().call(os.getpid, deadline_seconds=10)

    assert caught.value.advice == "raise ulimit -n"
    assert open_files() == before


def test_where_too_many_files_are_open_none_is_sent_off() -> None:
    """That is said, with what helps, and nothing stays open."""
    before = open_files()
    with room_for(1), pytest.raises(Unavailable, match="no process can be started: Too many open files") as caught:
        Errand(list, 20.0)

    assert caught.value.advice == "raise ulimit -n"
    assert open_files() == before


def test_where_too_many_files_are_open_no_sampler_is_started_and_none_is_left_open(tmp_path: Path) -> None:
    """Its two pipes take four as well."""
    (tmp_path / "nvidiactl").touch()
    probe = GpuProbe(lambda: machine(1), Filesystem(dev=tmp_path))
    before = open_files()
    with room_for(3), pytest.raises(Unavailable, match="no GPU sampler can be started: Too many open files") as caught:
        probe.look()

    assert caught.value.advice == "raise ulimit -n"
    assert open_files() == before
