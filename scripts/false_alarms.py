"""False alarms per hour: healthy jobs with real pauses, watched by a real daemon and by ``perfwatch run``, for as long as you like.

scripts/false_alarms.py --minutes 80 -o results
scripts/false_alarms.py --minutes 180 --user 65534           as root: the daemon watches jobs of this user

Four light jobs make a step about five times a second, end well after some minutes and are started again. They pause as real ones do: an
evaluation, a checkpoint with fsync, a retried upload, a rank that works alone while the other waits, data that a process outside
publishes. No pause reaches the hang timeout, so each post of "hung" or "crashed" is a false alarm; "slow" is counted by its cause.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KINDS = ("evaluating", "workers", "ranks", "streaming")
UNDER_RUN = ("evaluating", "ranks")  # the others are found by the daemon
SHORTEST_MINUTES, LONGEST_MINUTES = 8.0, 25.0
LONGEST_PAUSE_SECONDS = 50.0
STEP_SECONDS = 0.2
WRONG = ("hung", "gone crashed", "gone killed")


# ---- the jobs: this file again, as another process


def _train(kind: str, minutes: float, place: Path) -> None:
    """Train for so long, with pauses."""
    import torch

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    chance = random.Random(f"{kind} {minutes}")  # the same in all ranks
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    if kind == "ranks":
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = _batches(kind, place)
    until = time.monotonic() + 60 * minutes
    pause_after, step, proceed = chance.randrange(100, 600), 0, torch.ones(1)
    while True:
        batch = next(batches)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)  # as long as a card would take; it costs no CPU
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        proceed.fill_(time.monotonic() < until)
        if kind == "ranks":
            torch.distributed.broadcast(proceed, 0)
        if not proceed.item():
            break
        if step % pause_after == 0:
            seconds = chance.uniform(5.0, LONGEST_PAUSE_SECONDS)
            if rank == 0:
                _pause(chance.choice(("evaluation", "checkpoint", "upload")), seconds, model, place)
            if kind == "ranks":
                torch.distributed.barrier()
    if kind == "ranks":
        torch.distributed.destroy_process_group()
    print("done", flush=True)


def _pause(what: str, seconds: float, model: Any, place: Path) -> None:
    import torch

    until = time.monotonic() + seconds
    print(f"{what}, {seconds:.0f} s", flush=True)
    while time.monotonic() < until:
        if what == "evaluation":
            with torch.no_grad():
                model.module(torch.randn(32, 64)) if hasattr(model, "module") else model(torch.randn(32, 64))
            time.sleep(0.05)
        elif what == "checkpoint":
            with (place / f"checkpoint-{os.getpid()}").open("wb") as file:
                torch.save(model.state_dict(), file)
                file.write(bytes(2**20))
                os.fsync(file.fileno())
            time.sleep(0.5)
        else:  # an upload that is refused, and tried again later
            time.sleep(min(10.0, until - time.monotonic()) if until > time.monotonic() else 0.0)


def _batches(kind: str, place: Path) -> Any:
    import torch

    if kind == "workers":
        data = torch.utils.data.TensorDataset(torch.randn(32 * 400, 64))
        while True:
            for (batch,) in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=2):
                yield batch
    if kind == "streaming":
        number = 0
        while True:
            shards = sorted(place.glob("shard-*.pt"))
            if not shards:
                time.sleep(0.5)
                continue
            number += 1
            shard = torch.load(shards[0])
            shards[0].unlink()
            yield from shard.split(32)
    while True:
        yield torch.randn(32, 64)


def _publish(place: Path, stopped: threading.Event) -> None:
    """The process outside the job: a shard of some 100 steps, then nothing for a while."""
    chance, number = random.Random(7), 0
    while not stopped.wait(chance.uniform(10.0, LONGEST_PAUSE_SECONDS)):
        number += 1
        code = f"import torch; torch.save(torch.randn({32 * chance.randrange(30, 120)}, 64), {str(place / 'new')!r})"
        subprocess.run([sys.executable, "-c", code], check=False)
        (place / "new").chmod(0o644)
        (place / "new").rename(place / f"shard-{number:06}.pt")


# ---- the watch


class Receiver:
    """A webhook that keeps what is posted, with the time."""

    def __init__(self, log: Path) -> None:
        self.posts: list[dict[str, Any]] = []
        keep = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                keep.append(content)
                with log.open("a") as file:
                    file.write(json.dumps({"received": time.time(), **content}) + "\n")
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


def _command(kind: str, minutes: float, place: Path, user: int | None) -> list[str]:
    train = [sys.executable, __file__, "--job", kind, "--minutes", f"{minutes:.3f}", "-o", str(place)]
    if kind == "ranks":
        ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        train = ranks + train[1:]
    if kind in UNDER_RUN:
        return [sys.executable, "-m", "perfwatch", "run", "--notify-on", "hung,slow,crashed,recovered", "--", *train]
    become = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*become, *train]


def watch(minutes: float, out: Path, user: int | None) -> dict[str, Any]:
    """Run the jobs and the daemon; what was posted, and for how long jobs were watched."""
    out.mkdir(parents=True, exist_ok=True)
    receiver, stopped, chance = Receiver(out / "posts.jsonl"), threading.Event(), random.Random(1)
    until, hours, starts, ends = time.monotonic() + 60 * minutes, Counter[str](), Counter[str](), Counter[str]()
    environment = {**os.environ, "PERFWATCH_NOTIFY": receiver.url, "PERFWATCH_DIR": str(out / "sessions")}
    (out / "sessions").mkdir(mode=0o700, exist_ok=True)
    only = ["--user", str(user)] if user is not None else []
    with (out / "daemon.log").open("w") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "perfwatch", "daemon", "--directory", str(out / "sessions" / "daemon"), *only],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip

        def keep_running(kind: str) -> None:
            place = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=out))
            if user is not None and kind not in UNDER_RUN:
                os.chown(place, user, user)
            if kind == "streaming":
                threading.Thread(target=_publish, args=(place, stopped), daemon=True).start()
            while (left := until - time.monotonic()) > 120.0:
                length = min(chance.uniform(SHORTEST_MINUTES, LONGEST_MINUTES), left / 60)
                began = time.monotonic()
                starts[kind] += 1
                with (out / f"{kind}.log").open("a") as told:
                    job = subprocess.Popen(
                        _command(kind, length, place, user), env=environment, stdout=told, stderr=told, cwd=place
                    )
                    try:
                        ends[f"{kind}: exit code {job.wait(60 * length + 600)}"] += 1
                    except subprocess.TimeoutExpired:
                        job.kill()
                        ends[f"{kind}: did not end"] += 1
                hours[kind] += (time.monotonic() - began) / 3600  # type: ignore[assignment]
                _write(out, hours, starts, ends, receiver.posts)
                time.sleep(chance.uniform(5.0, 60.0))

        threads = [threading.Thread(target=keep_running, args=(kind,)) for kind in KINDS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stopped.set()
        time.sleep(20.0)  # the last verdicts are still posted
        daemon.terminate()
        daemon.wait(60)
    return _write(out, hours, starts, ends, receiver.posts)


def most(count: int) -> float:
    """The upper end of the one-sided 95 % interval of a Poisson mean of which ``count`` were seen: 3.0 for none."""
    low, high = 0.0, 10.0 * (count + 3)
    for _ in range(60):
        mean = (low + high) / 2
        seen = sum(math.exp(-mean) * mean**number / math.factorial(number) for number in range(count + 1))
        low, high = (mean, high) if seen > 0.05 else (low, mean)
    return high


def _write(
    out: Path, hours: Counter[str], starts: Counter[str], ends: Counter[str], posts: list[dict[str, Any]]
) -> dict[str, Any]:
    total = sum(hours.values())
    told = Counter(f"{one['perfwatch']['state']} {one['perfwatch']['cause']}" for one in posts)
    false = sum(count for what, count in told.items() if what.startswith(WRONG))
    report = {
        "false_hung_or_crashed": false,
        "at_most_in_an_hour": round(most(false) / total, 2) if total else None,
        "told": dict(told.most_common()),
        "job_hours": {kind: round(value, 2) for kind, value in hours.items()},
        "job_hours_total": round(total, 2),
        "starts": dict(starts),
        "ends": dict(ends),
        "posts": len(posts),
    }
    (out / "report.json").write_text(json.dumps(report, indent=1))
    return report


def main() -> int:
    """Watch and print, or be a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=80.0)
    parser.add_argument("--user", type=int, help="of the jobs that the daemon watches; needs root")
    parser.add_argument("-o", "--out", type=Path, default=Path("false-alarms"))
    parser.add_argument("--job", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        _train(options.job, options.minutes, options.out)
        return 0
    print(json.dumps(watch(options.minutes, options.out.resolve(), options.user), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
