"""Small machines for tests: trees of /proc in which each process is given in a line."""

from pathlib import Path

from perfwatch_probes.filesystem import Filesystem

TORCH = b"7f0-7f1 r-xp 0 fe:00 1 /site-packages/torch/lib/libtorch_cpu.so\n"
UNREADABLE = "unreadable"


class FakeMachine:
    """A /proc under ``root``; add processes, then hand ``filesystem`` to what is tested."""

    def __init__(self, root: Path) -> None:
        """An empty machine."""
        self.proc = root / "proc"
        self.proc.mkdir(parents=True)
        self.filesystem = Filesystem(proc=self.proc, sys=root / "sys")
        self.write("self/mounts", "proc /proc proc rw 0 0\n")
        self.write("self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.write("self/sched", "se.exec_start : 1.0\n")

    def write(self, path: str, content: str | bytes) -> None:
        """One file."""
        file = self.proc / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def process(
        self,
        pid: int,
        parent: int,
        command: str = "python train.py",
        *,
        name: str = "python",
        torch: bool | str = True,
        state: str = "S",
        environ: str = "",
        uid: int = 0,
        tracer: int = 0,
    ) -> None:
        """A process with one thread; ``torch=UNREADABLE`` is one whose maps we may not read."""
        stat = f"{pid} ({name}) {state} {parent} " + "0 " * 15 + f"1 0 {pid} " + "0 " * 31
        status = f"Name:\t{name}\nState:\t{state} (any)\nTracerPid:\t{tracer}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        self.write(f"{pid}/stat", stat)
        self.write(f"{pid}/status", status)
        self.write(f"{pid}/cmdline", "\0".join(command.split()) + "\0")
        self.write(f"{pid}/environ", environ.replace(" ", "\0"))
        if torch is not UNREADABLE:
            self.write(f"{pid}/maps", TORCH if torch else b"7f0-7f1 r-xp 0 fe:00 1 /usr/lib/libc.so\n")
        self.write(f"{pid}/mem", "")
        (self.proc / str(pid) / "exe").symlink_to(
            "/usr/bin/python3" if command.startswith("python") else f"/bin/{name}"
        )
        for kind in ("pid", "mnt", "net", "user", "cgroup"):
            for who in ("self", str(pid)):
                link = self.proc / who / "ns" / kind
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(f"{kind}:[1]")
        self.write(f"{pid}/task/{pid}/stat", stat)
        self.write(f"{pid}/task/{pid}/status", status)
