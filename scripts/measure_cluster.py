"""How long one verdict takes on a cluster made of one machine: real sshds in network namespaces, real ranks that hang in gloo.

    scripts/measure cluster                             # 64 hosts with 8 ranks each
    scripts/measure cluster --hosts 8 --rounds 3
    scripts/measure cluster --seconds 4                 # each host samples for 4 s

Each host has its own network, processes, /dev/shm and name, and an sshd; all are on one bridge (10.77.0.0/16, with no way out). The
ranks are forks of one Python, so that 512 of them have room: each is small, and each has its own rank in its environment. They meet
over gloo and all_reduce, until one of them never comes. Then ``perfwatch fleet`` asks all hosts, first while all answer, then while two
hosts are cut off, one accepts connections and says nothing, and one prints garbage without end. As root.
"""

import argparse
import ctypes
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

NAMES = ("RANK", "LOCAL_RANK")  # of which each rank has its own value: their places are kept in the first environment
PLACE = "0000000"
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000  # linux/sched.h
MS_REC, MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h
BRIDGE = "pwmeasure"
STEPS = 3
READY_SECONDS = 600.0
ENV_START, ENV_END = 47, 48  # fields 50 and 51 of proc_pid_stat(5), from the state on
SICK = ("cut", "cut", "mute", "flood")
libc = ctypes.CDLL(None, use_errno=True)


def must(result: int) -> None:
    """Raises OSError where a call of libc failed."""
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def address(host: int) -> str:
    """Of a host; the bridge is the first of the network."""
    return f"10.77.{(host + 2) >> 8}.{(host + 2) & 255}"


def say_in_environment(name: str, value: int) -> None:
    """Change a number in the environment that /proc shows of this process: its place was kept when the program was started."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_END])
    content = b"\0" + ctypes.string_at(start, end - start)
    at = content.index(f"\0{name}={PLACE}".encode()) + len(name) + 1
    ctypes.memmove(start + at, str(value).zfill(len(PLACE)).encode(), len(PLACE))
    os.environ[name] = str(value)


def load_batch(stuck: bool) -> float:
    """What the training loop waits for."""
    if stuck:
        time.sleep(1e6)
    return 1.0


def train(rank: int, stuck: bool, ready: int) -> None:
    """A rank: some steps of a job that meets over gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gradient = torch.ones(1)
    for step in range(1_000_000):
        batch = load_batch(stuck and step == STEPS)
        gradient.fill_(batch)
        if step == STEPS:
            os.write(ready, b"r")
        dist.all_reduce(gradient)
        time.sleep(0.05)


def rank_of_host(rank: int, local: int, options: argparse.Namespace, ready: int) -> None:
    """Become one; never returns."""
    try:
        os.setsid()
        say_in_environment("RANK", rank)
        say_in_environment("LOCAL_RANK", local)
        if rank == options.stuck:
            os.write(ready, b"r")
        train(rank, rank == options.stuck, ready)
    finally:
        os._exit(1)


def host(number: int, options: argparse.Namespace, folder: Path, ready: int, told: int, go: int) -> None:
    """The first process of a host, in namespaces of its own: starts the ranks and becomes sshd."""
    must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    must(libc.mount(b"proc", b"/proc", b"proc", 0, None))
    must(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None))
    name = f"node-{number:03d}"
    must(libc.sethostname(name.encode(), len(name)))
    os.write(told, b"h")
    os.read(go, 1)
    network = f"addr add {address(number)}/16 dev eth0\nlink set eth0 up\nlink set lo up\n"
    subprocess.run(("ip", "-batch", "-"), input=network, text=True, check=True)
    for local in range(options.ranks_a_host):
        if os.fork() == 0:
            rank_of_host(number * options.ranks_a_host + local, local, options, ready)
    settings = {
        "ListenAddress": address(number), "HostKey": folder / "key", "AuthorizedKeysFile": folder / "key.pub", "PidFile": "none",
        "StrictModes": "no", "UsePAM": "no", "PermitRootLogin": "yes", "LogLevel": "ERROR",
        "ForceCommand": f"{folder}/login {name}",
    }  # fmt: skip
    words = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "sshd"
    os.execv(sshd, [sshd, "-D", "-f", "/dev/null", *words])


def started(number: int, options: argparse.Namespace, folder: Path, ready: int) -> tuple[int, int]:
    """Make a host; the pids of the process that holds its network, and of its first process."""
    told, go = os.pipe(), os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            must(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWNET))
            first = os.fork()
            if first == 0:
                host(number, options, folder, ready, told[1], go[0])
            os.write(told[1], b"%d\n" % first)
            os.waitpid(first, 0)
        finally:
            os._exit(1)
    words = b""
    while not (b"h" in words and b"\n" in words):
        piece = os.read(told[0], 64)
        assert piece, f"host {number} did not start"
        words += piece
    network = f"link add pw{number} type veth peer name eth0 netns {holder}\nlink set pw{number} master {BRIDGE}\nlink set pw{number} up\n"
    subprocess.run(("ip", "-batch", "-"), input=network, text=True, check=True)
    os.write(go[1], b"g")
    for descriptor in (*told, *go):
        os.close(descriptor)
    return holder, int(words.replace(b"h", b""))


def prepare(folder: Path, hosts: int) -> None:
    """Keys, names, and what a login runs."""
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")), check=True)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    kept = " ".join(f"{name}={os.environ[name]}" for name in ("PATH", "PYTHONPATH") if name in os.environ)
    (folder / "login").write_text(
        f"#!/bin/sh\n[ -e {folder}/flood-$1 ] && exec yes perfwatch\nexport PERFWATCH_DIR={folder}/sessions/$1 {kept}\n"
        'exec sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    (folder / "login").chmod(0o755)
    (folder / "config").write_text(
        "".join(f"Host node-{number:03d}\n  HostName {address(number)}\n" for number in range(hosts))
        + f"Host *\n  IdentityFile {folder}/key\n  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n"
    )


def verdict(options: argparse.Namespace, folder: Path) -> None:
    """Ask all hosts once, and say what came of it."""
    asked = f"node-[000-{options.hosts - 1:03d}]"
    command = [
        sys.executable,
        "-m",
        "perfwatch",
        "fleet",
        "--json",
        "--hosts",
        asked,
        "--options",
        f"-F {folder}/config",
    ]
    environment = {key: value for key, value in os.environ.items() if key not in NAMES}
    environment["PERFWATCH_DIR"] = str(folder / "kept")
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--seconds", f"{options.seconds:g}"], env=environment, capture_output=True, text=True
    )
    took = time.monotonic() - began
    try:
        said = json.loads(done.stdout)
    except ValueError:
        print(f"{took:.1f} s, exit code {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}", flush=True)
        return
    found = said["verdict"]
    states = [one["state"] for one in said["hosts"]]
    culprits = ", ".join(
        f"rank {one['rank']} on {one['host']} at {(one.get('frame') or {}).get('function')}"
        for one in found["culprits"]
    )
    print(
        f"{took:5.1f} s  {found['state']} {found['cause']} ({found['confidence']})  {culprits or found['summary']}"
        f"  ranks {found['coverage']['ranks_seen']} of {found['coverage']['world_size']}"
        f"  hosts: {', '.join(f'{states.count(one)} {one}' for one in dict.fromkeys(states))}",
        flush=True,
    )
    for one in said["hosts"]:
        if one["state"] != "answered":
            print(f"         {one['host']}: {one['state']}: {one['reason']}", flush=True)


def measure(options: argparse.Namespace, folder: Path, ends: ExitStack) -> None:
    """The whole of it."""
    import torch.distributed  # noqa: F401 (the ranks are forks, and find it there)

    gc.collect()
    gc.freeze()  # what all ranks share stays shared
    subprocess.run(("ip", "link", "add", BRIDGE, "type", "bridge"), check=True)
    ends.callback(subprocess.run, ("ip", "link", "delete", BRIDGE), check=False)
    subprocess.run(("ip", "addr", "add", "10.77.0.1/16", "dev", BRIDGE), check=True)
    subprocess.run(("ip", "link", "set", BRIDGE, "up"), check=True)
    prepare(folder, options.hosts)
    reader, ready = os.pipe()
    began = time.monotonic()
    made = []
    for number in range(options.hosts):
        holder, first = started(number, options, folder, ready)
        made.append(first)
        ends.callback(subprocess.run, ("ip", "link", "delete", f"pw{number}"), check=False)
        ends.callback(os.waitpid, holder, 0)
        ends.callback(os.kill, first, signal.SIGKILL)
    count = 0
    while count < options.hosts * options.ranks_a_host:
        assert time.monotonic() - began < READY_SECONDS, f"{count} ranks came so far"
        count += len(os.read(reader, 4096))
    print(f"{count} ranks on {options.hosts} hosts wait after {time.monotonic() - began:.0f} s", flush=True)
    time.sleep(options.settle)
    for _ in range(options.rounds):
        verdict(options, folder)
    if options.hosts <= len(SICK):
        return
    chosen = [number for number in range(options.hosts) if number != options.stuck // options.ranks_a_host][
        -len(SICK) :
    ]
    for number, how in zip(chosen, SICK, strict=True):
        if how == "cut":
            subprocess.run(("ip", "link", "set", f"pw{number}", "down"), check=True)
        elif how == "mute":
            os.kill(made[number], signal.SIGSTOP)
            ends.callback(os.kill, made[number], signal.SIGCONT)
        else:
            (folder / f"flood-node-{number:03d}").touch()
    print(f"now {', '.join(f'node-{number:03d} {how}' for number, how in zip(chosen, SICK, strict=True))}", flush=True)
    for _ in range(options.rounds):
        verdict(options, folder)


def main() -> None:
    """Make the cluster, measure, end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--ranks-a-host", type=int, default=8)
    parser.add_argument("--stuck", type=int, default=301, help="the rank that never comes")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each host samples")
    parser.add_argument("--settle", type=float, default=20.0, help="for how long they hang before they are asked")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    options.stuck %= options.hosts * options.ranks_a_host
    kept = {
        "MASTER_ADDR": address(0), "MASTER_PORT": "29500", "WORLD_SIZE": str(options.hosts * options.ranks_a_host),
        "GLOO_SOCKET_IFNAME": "eth0", "TORCH_GLOO_LAZY_INIT": "1", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
    }  # fmt: skip
    if any(os.environ.get(name) != PLACE for name in NAMES):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | kept | dict.fromkeys(NAMES, PLACE))
    with tempfile.TemporaryDirectory(prefix="perfwatch-cluster-") as folder, ExitStack() as ends:
        measure(options, Path(folder), ends)


if __name__ == "__main__":
    main()
