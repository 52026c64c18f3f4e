"""Starts stand-ins for NCCL's RAS service, each in a process of its own, and counts what each was asked."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from perfwatch_probes.group_variables import free_port
from tests.probes.ras_answers import ras_answer

PIDS = ("607", "608")  # of the ranks in the report; a service takes their places


@dataclass(frozen=True)
class Service:
    """One that listens."""

    process: subprocess.Popen[str]
    port: int

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def end(self) -> tuple[int, int]:
        """How many clients it has greeted, and how many reports it was asked for."""
        self.process.kill()
        said = self.process.communicate()[0].split()
        return said.count("greeted"), said.count("asked")


class Services:
    """Those of one test.

    Args:
        folder: for the reports that they give.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Service] = []
        for name, recorded in (("json", "2.28.9_hung.json"), ("text", "2.28.9_hung.txt")):
            report = ras_answer(recorded)
            for pid in PIDS:
                report = report.replace(f'"pid": {pid}', '"pid": {PID}').replace(f"process {pid}", "process {PID}")
            (folder / name).write_text(report)

    def __call__(
        self, manner: str = "", environment: str | None = None, port: int | None = None, host: str = "127.0.0.1"
    ) -> Service:
        """Start one that listens by the time this returns."""
        port = port or free_port()
        named = f"localhost:{port}" if environment is None else environment
        program = [sys.executable, str(Path(__file__).parent / "ras_service.py"), str(port)]
        process = subprocess.Popen(
            [*program, str(self._folder / "json"), str(self._folder / "text"), manner, host],
            env={**os.environ, "NCCL_RAS_ADDR": named},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(Service(process, port))
        assert process.stdout is not None
        assert process.stdout.readline(), "it does not listen"
        return self._started[-1]

    def close(self) -> None:
        """End them all."""
        for one in self._started:
            if one.process.poll() is None:
                one.end()
