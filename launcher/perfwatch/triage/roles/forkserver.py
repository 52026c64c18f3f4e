"""Processes that a forkserver of ``multiprocessing`` has forked: they bear its command line, and work for whoever started it."""

import re

import msgspec

from perfwatch_probes.readings import Process

_SERVER = re.compile(r"\bmultiprocess(?:ing)?\.forkserver\b")


def adopted(processes: dict[int, Process]) -> dict[int, Process]:
    """The same, but what a forkserver has forked is as a fork of the program that asked for it: its child, with its command."""
    found = dict(processes)
    for pid, process in processes.items():
        server = processes.get(process.parent_pid)
        if server is None or server.command != process.command or not any(map(_SERVER.search, process.command)):
            continue
        program = processes.get(server.parent_pid)
        if program is not None:
            found[pid] = msgspec.structs.replace(process, parent_pid=program.pid, command=program.command)
    return found
