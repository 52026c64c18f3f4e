"""What every watcher answers on its control socket: its state, its verdict, and captures. ``processes.control`` has the protocol."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from perfwatch import __version__
from perfwatch.processes.channel import Message
from perfwatch.verdict import Verdict
from perfwatch.watching.capturing import Capturing


def status(
    mode: str,
    roots: list[int],
    session: Path | None,
    agent_folder: Path | None,
    elapsed_seconds: float,
    patience: object,
) -> Message:
    """The state of a watcher.

    Args:
        mode: ``run``, ``attach`` or ``daemon``.
        roots: the processes at the top of its job.
        session: where it records.
        agent_folder: where the agent of the job writes.
        elapsed_seconds: for how long it has watched.
        patience: its hang timeout, in seconds.
    """
    return {
        "ok": True,
        "version": __version__,
        "mode": mode,
        "watcher": os.getpid(),
        "roots": roots,
        "session": str(session) if session is not None else None,
        "agent_folder": str(agent_folder) if agent_folder is not None else None,
        "elapsed_seconds": elapsed_seconds,
        "patience_seconds": patience,
    }


def answer(
    request: Message,
    state: Callable[[], Message],
    attend: Callable[[], None],
    verdict: Callable[[], Verdict | None],
    capturing: Capturing,
) -> Message:
    """The answer to a request.

    Args:
        request: what was asked.
        state: returns ``status``.
        attend: makes the watcher look closely.
        verdict: judges now; None if that fails.
        capturing: makes captures.
    """
    command = request.get("command")
    if command == "status":
        return state()
    if command == "verdict":
        if request.get("attend"):
            attend()
        told = verdict()
        if told is None:
            return {"ok": False, "error": "no verdict can be made now"}
        return {"ok": True, "verdict": msgspec.to_builtins(told)}
    if command in ("capture", "captured"):
        return capturing.answer(request)
    return {"ok": False, "error": f"unknown command {command!r}"}


def answer_user(request: Message, state: Callable[[], Message], last: Callable[[], Verdict | None]) -> Message:
    """The answer to the job's user, who asks a watcher of root: nothing is done for it.

    Args:
        request: what was asked.
        state: returns ``status``.
        last: the newest verdict; None before the first.
    """
    command = request.get("command")
    if command == "status":
        return state()
    if command == "verdict" and (told := last()) is not None:
        return {"ok": True, "verdict": msgspec.to_builtins(told)}
    return {"ok": False, "error": "no verdict was made yet" if command == "verdict" else "only root may ask for that"}
