"""Hosts reached by ssh: ClusterShell names them, runs ssh on many at once, and ends those that are late.

``--hosts`` takes whatever ClusterShell understands: ``a,b[1-4]``, ``@group``, and with its Slurm groups ``@slurmjob:4242``.
ClusterShell (LGPL) is an optional extra. It keeps a line in memory until it ends, however long, and looks through all of it
again with every piece that comes; therefore ssh's output passes a ``head`` that cuts it, and a ``fold`` that ends its lines.
"""

import shlex
import time
from collections.abc import Sequence
from typing import Any

from perfwatch.errors import UsageError, install_command
from perfwatch.fleet.engine import REACH_SECONDS, Answer, Heard, for_a_shell, found
from perfwatch.fleet.pool import last_line
from perfwatch.fleet.wire import DATA_CHARACTERS, LONGEST_ANSWER_BYTES

AT_ONCE = 256
REQUIREMENT = "ClusterShell>=1.9"
LONGEST_LINE_BYTES = 2 * DATA_CHARACTERS  # no line of an answer is as long
# ClusterShell brings its Slurm groups as an example that is not read unless it is copied (tried with 1.9).
SLURM_GROUPS = (
    "cd /etc/clustershell/groups.conf.d && cp slurm.conf.example slurm.conf  # or: perfwatch fleet --slurm JOBID"
)
MOST_COMPLAINTS = 20  # lines of stderr kept of one host
# ClusterShell ends the shell that is late, and not what that has started: ``timeout`` ends ssh soon after. The exit code is that of
# ssh, which no pipe of sh(1) gives: it goes around them, through descriptor 3.
_CUT = (
    'exec 4>&1; code=$({ { timeout "$0" ssh "$@" 3>&- 4>&-; echo $? >&3; } '
    f"| head -c {LONGEST_ANSWER_BYTES + 1} | fold -b -w {LONGEST_LINE_BYTES} >&4; }} 3>&1); exit $code"
)
_AFTER_SECONDS = 2
# Of many hosts some are down. Once nearly all have told, the others get a quarter of that time more: all were asked at once, and a
# verdict that waits for a dead host until the deadline comes half a minute late.
MANY_HOSTS, NEARLY_ALL = 16, 0.9
MORE_TIME, LEAST_MORE_SECONDS = 0.25, 2.0


class OverSsh:
    """The hosts that were named.

    Args:
        hosts: a ClusterShell node set.
        command: what perfwatch is called there; None: our own path, else the one on PATH.
        options: further options of ssh, as typed.

    Raises UsageError: ClusterShell or ssh is not installed, or the set of hosts makes no sense.
    """

    complete = False
    job = ""

    def __init__(self, hosts: str, command: Sequence[str] | None = None, options: str = "") -> None:
        try:
            from ClusterShell.NodeSet import NodeSet, NodeSetException
            from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError
        except ImportError:
            raise UsageError(
                "--hosts needs ClusterShell, which is not installed", install_command(REQUIREMENT)
            ) from None
        if not found("ssh"):
            raise UsageError("--hosts needs ssh, which is not on PATH", "apt-get install openssh-client")
        try:
            self.hosts: tuple[str, ...] = tuple(str(host) for host in NodeSet(hosts))
        except (GroupResolverError, GroupSourceError):
            raise UsageError(
                f"--hosts {hosts}: no such group of hosts",
                SLURM_GROUPS if hosts.startswith("@slurm") else "nodeset --list-all shows the groups",
            ) from None
        except (NodeSetException, AssertionError) as error:  # a range too large fails its own check
            raise UsageError(f"--hosts {hosts}: {error}", "perfwatch fleet --hosts 'node-a,node-b[1-4]'") from None
        if option := next((host for host in self.hosts if host.startswith("-")), None):
            raise UsageError(f"--hosts {hosts}: {option} would be an option of ssh, no host", "--options takes those")
        if not self.hosts:
            raise UsageError(f"--hosts {hosts} names no host", "perfwatch fleet --hosts 'node-a,node-b[1-4]'")
        self._command = command
        self._options = options

    def by_hand(self, host: str) -> str:
        """See ``Engine.by_hand``."""
        return " ".join(filter(None, ("ssh", self._options, shlex.quote(host))))

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """See ``Engine.ask``."""
        from ClusterShell.NodeSet import NodeSet
        from ClusterShell.Task import task_self

        task: Any = task_self()
        for name, value in {
            "ssh_path": shlex.join(["sh", "-c", _CUT, str(int(deadline_seconds) + _AFTER_SECONDS)]),
            "ssh_options": self._options or None,
            "connect_timeout": REACH_SECONDS,
            "fanout": AT_ONCE,
        }.items():
            task.set_info(name, value)
        task.set_default("stdout_msgtree", False)
        task.set_default("stderr_msgtree", False)
        listener = _listener(heard, len(self.hosts), task)
        try:
            listener.worker = task.shell(
                for_a_shell(self._command, arguments),
                nodes=NodeSet.fromlist(self.hosts),
                handler=listener,
                timeout=deadline_seconds,
                stderr=True,
                stdin=False,
            )
            task.run()
        except KeyboardInterrupt:
            task.abort(kill=True)
            raise
        for host in self.hosts:
            listener.finish(host, None)


def _listener(heard: Heard, hosts: int, task: Any) -> Any:
    """A ClusterShell event handler: the class is made here, for its base is only there where ClusterShell is."""
    from ClusterShell.Event import EventHandler

    class Listener(EventHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.lines: dict[str, list[str]] = {}
            self.length: dict[str, int] = {}
            self.complaints: dict[str, list[str]] = {}
            self.told: set[str] = set()
            self.well = 0
            self.began = time.monotonic()
            self.nearly_all: float | None = None  # after so many seconds nearly all had told
            self.worker: Any = None

        def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
            line = msg.decode(errors="replace")
            if sname == "stderr":
                self.complaints.setdefault(node, []).append(line)
                del self.complaints[node][:-MOST_COMPLAINTS]
                return
            self.length[node] = self.length.get(node, 0) + len(line) + 1
            if self.length[node] <= LONGEST_ANSWER_BYTES:
                self.lines.setdefault(node, []).append(line)

        def ev_hup(self, worker: Any, node: str, rc: int | None) -> None:
            self.finish(node, rc)
            self.well += rc == 0
            failed = len(self.told) - self.well
            if self.nearly_all is None and self.well >= max(MANY_HOSTS, NEARLY_ALL * (hosts - failed)):
                self.nearly_all = time.monotonic() - self.began
                task.timer(max(LEAST_MORE_SECONDS, MORE_TIME * self.nearly_all), handler=self)

        def ev_timer(self, timer: Any) -> None:
            self.worker.abort()

        def finish(self, node: str, code: int | None) -> None:
            if node in self.told:
                return
            self.told.add(node)
            said = last_line("\n".join(self.complaints.get(node, [])))
            heard(
                Answer(
                    host=node,
                    lines=tuple(self.lines.pop(node, ())),
                    said=said,
                    exit_code=code,
                    timed_out=code is None,
                    waited=time.monotonic() - self.began,
                    nearly_all=self.nearly_all,
                    too_long=self.length.get(node, 0) > LONGEST_ANSWER_BYTES,
                    received=time.time(),
                )
            )

    return Listener()
