"""``--on-verdict``: a command of the operator's that a change of the verdict starts, with the verdict on its standard input.

It is the operator's command and nothing of ours: perfwatch itself signals and changes no job. No shell reads it, what the job
wrote reaches it as data alone, and where we are root it runs as the user of the job, or as the one that the operator names. Nothing
is run for a job of another user where we cannot become that user: its environment may name another job than its own.
A recording starts nothing: only a watch of a living job has one of these.
"""

import json
import os
import pwd
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from perfwatch.exporters.wanted import CommandWanted
from perfwatch.processes.channel import LONGEST_MESSAGE_BYTES, Channel, Message
from perfwatch.processes.helper import HelperClient
from perfwatch.recording.redaction import redact_tree
from perfwatch.recording.session import Session
from perfwatch.report.json import as_object
from perfwatch.text import clean, duration
from perfwatch.verdict import Verdict
from perfwatch_probes.external import kill, reap, start
from perfwatch_probes.guest import NOBODYS_GROUP, Arrival, Identity, identity_of, is_ours
from perfwatch_probes.probe import Unavailable

ROOM_BYTES = LONGEST_MESSAGE_BYTES - 4096
LEAST = (
    "other_findings",
    "efficiency",
    "not_observed",
    "wait_chain",
    "evidence",
)  # left out where there is no room, in this order
MEMORY_BYTES = 2**31
MOST_OUTPUT_BYTES = 64 * 2**10
LONGEST_SAID = 1000
LAST_SECONDS = 2.0  # after the kill
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a command of another user gets of our environment: where its cluster is, and nothing that may be a secret.
PASSED_ON = (
    "LANG",
    "LC_ALL",
    "TZ",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "NODE_NAME",
    "SLURM_CONF",
)


def content_of(verdict: Verdict) -> dict[str, Any]:
    """The verdict as the command gets it: ``perfwatch.verdict/2``, with empty lists where it would be too long."""
    content: dict[str, Any] = redact_tree(as_object(verdict))
    for name in LEAST:
        if len(json.dumps(content)) <= ROOM_BYTES:
            break
        content[name] = None if name == "efficiency" else []
    return content


def is_own(session: Session) -> bool:
    """True if a job could do itself all that we can: ``run`` has started it, or it has our user and as many rights.

    Root of a container has root's uid and fewer rights. Asked while the job lives.
    """
    if session.mode == "run":
        return True
    try:
        return bool(session.root_pids) and is_ours(identity_of(session.root_pids[0]))
    except (Unavailable, OSError):
        return False


class Actor(HelperClient):
    """Starts the command, one at a time, each under a deadline.

    Args:
        wanted: what to run, as whom.
    """

    def __init__(self, wanted: CommandWanted) -> None:
        super().__init__("perfwatch-act", lambda channel: _serve(channel, wanted), finishes=True)

    def act(self, content: dict[str, Any], own: bool) -> None:
        """Hand over a verdict, and whether the job is our own (``is_own``); never waits."""
        self._helper.send({"act": content, "own": own})


def _serve(channel: Channel, wanted: CommandWanted) -> None:
    """Runs in the helper."""
    queue: list[Message] = []
    while queue or not channel.closed:
        if not channel.closed:
            queue += [message for message in channel.receive(0.0 if queue else None) if "act" in message]
        if queue:
            message = queue.pop(0)
            content = message["act"]
            what = f"--on-verdict {os.path.basename(wanted.words[0])} ({content['state']}, action {content['action']})"
            channel.send({"say": f"{what}: {_run(content, message['own'], wanted)}"})


def _run(content: dict[str, Any], own: bool, wanted: CommandWanted) -> str:
    """How it ended, in words."""
    try:
        settle, environment = _as_whom(content, own, wanted)
        verdict = os.memfd_create("verdict")
        try:
            os.write(verdict, msgspec.json.encode(content) + b"\n")
            os.lseek(verdict, 0, os.SEEK_SET)
            child = start(
                wanted.words, stdin=verdict, settle=settle, memory_bytes=MEMORY_BYTES, environment=environment
            )
        finally:
            os.close(verdict)
    except Unavailable as why:
        return f"not run: {why.reason}"
    said, in_time = _output(child, time.monotonic() + wanted.deadline_seconds)
    if not in_time:
        kill(child)
    code = (
        child.returncode if reap(child, LAST_SECONDS if not in_time else wanted.deadline_seconds) is not None else None
    )
    last = clean(said.decode("utf-8", "replace").strip().rpartition("\n")[2])[:LONGEST_SAID]
    if not in_time:
        return f"ended by perfwatch after {duration(wanted.deadline_seconds)}{f': {last}' if last else ''}"
    return f"exit code {code}{f': {last}' if last else ''}"


def _output(child: Any, until: float) -> tuple[bytes, bool]:
    """The end of what it wrote, and True if it closed its output in time."""
    said = b""
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdout, child.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            ready = selector.select(left) if left > 0.0 else []
            if not ready:
                break
            for key, _ in ready:
                piece = os.read(key.fd, MOST_OUTPUT_BYTES)
                said = (said + piece)[-MOST_OUTPUT_BYTES:]
                if not piece:
                    selector.unregister(key.fileobj)
        in_time = not selector.get_map()
    for stream in (child.stdout, child.stderr):
        stream.close()
    return said, in_time


def _as_whom(content: dict[str, Any], own: bool, wanted: CommandWanted) -> tuple[Callable[[], None], Mapping[str, str]]:
    """What the new process does first, and its environment. Raises Unavailable: there is no user as whom to run it."""
    uid = wanted.uid if wanted.uid is not None else (content.get("job") or {}).get("uid")
    if uid is None:
        raise Unavailable("the ranks of the job are of several users, or of none that is known")
    if uid == os.geteuid() and (own or wanted.uid is not None):
        return _listen_to_signals, os.environ
    if uid == 0:
        raise Unavailable("the job is root's in a container: name a user, --on-verdict-user")
    if os.geteuid() != 0:
        raise Unavailable(f"the job is of uid {uid}, and uid {os.geteuid()} cannot become that user")
    home, name, gid, groups = "/", "", NOBODYS_GROUP, []
    with suppress(KeyError):
        entry = pwd.getpwuid(uid)
        home, name, gid = entry.pw_dir, entry.pw_name, entry.pw_gid
        groups = os.getgrouplist(name, gid)
    arrival = Arrival(Identity(uid, gid, tuple(groups)), memory_bytes=MEMORY_BYTES)

    def settle() -> None:
        _listen_to_signals()
        arrival.settle()

    passed = {one: os.environ[one] for one in PASSED_ON if one in os.environ}
    return settle, {**passed, "PATH": SYSTEM_PATH, "HOME": home, **({"USER": name, "LOGNAME": name} if name else {})}


def _listen_to_signals() -> None:
    """The helper ignores most of them, and what it starts would as well."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
