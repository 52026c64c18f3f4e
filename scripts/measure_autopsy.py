"""Autopsy of what hangs and large jobs leave: is the culprit that of the live verdict; how long and how much memory it takes.

scripts/measure autopsy drills [--only NAME ...]       each hang drill of several ranks (gloo) under perfwatch run, ended by SIGKILL or
                                                       SIGTERM once its verdict is there; then its session and output are judged
scripts/measure autopsy drills --programs FILE...      the same with programs as those in scripts/blind
scripts/measure autopsy drills --time-out              ended by gloo's own time-out; then the logs of the ranks are judged, alone
scripts/measure autopsy ranks [--ranks 512] [--gib 2]  dumps and logs of a simulated job, judged by the command
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from blind import ANY, CALLED_HUNG, answer_of

from perfwatch.autopsy.recording_of import gather, recording_of
from perfwatch.drills import DRILLS
from perfwatch.drills.drill import Drill
from perfwatch.gauntlet import asking
from perfwatch.gauntlet.attempt import ONSET_SECONDS
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.needs import unmet
from perfwatch.gauntlet.program import BrokenDrillError, Program, command_of
from perfwatch.postmortem import diagnose
from perfwatch.recording.recording import load
from perfwatch.verdict import Verdict
from perfwatch_probes.guest import Guests, identity_of

ENDINGS = {
    "SIGKILL": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
}  # all processes at once; the launcher alone, as a scheduler does
TIME_OUT, TIME_OUT_SECONDS = "time-out", 150.0  # gloo's: longer than any verdict takes
OVER_SECONDS = 60.0
WATCHDOG = (
    "[rank{rank}]:[E1129 10:10:{second:02}.000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds.\n"
)
ENTRY: dict[str, object] = {
    "p2p_seq_id": 0,
    "op_id": 0,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[7087872]],
    "input_dtypes": ["Float"],
    "output_sizes": [[7087872]],
    "output_dtypes": ["Float"],
    "is_p2p": False,
    "time_created_ns": 0,
}
LINE = (
    "2026-11-29 10:{minute:02}:{second:02},000 - train - INFO - step {step} loss {loss:.4f} grad_norm {norm:.4f} lr 3.0e-04 "
    "tokens/s {rate}\n"
)


# Hangs that were seen, and then ended


def of_ranks(only: list[str]) -> list[Drill]:
    """Hang drills with several ranks that need no GPU."""
    found = [
        one
        for one in DRILLS
        if one.state == "hung" and "nccl" not in one.arguments and (one.ranks > 1 or "rendezvous" in one.name)
    ]
    return [one for one in found if not unmet(one.needs) and (not only or one.name in only)]


def described(programs: list[Path]) -> list[Drill]:
    """Of programs that say what they are, those that hang, have several ranks and need no GPU."""
    answers = {path: answer_of(path) for path in programs}
    return [
        Drill(path.stem, str(path.absolute()), "", "hung", () if one.causes == ANY else one.causes, ranks=one.ranks)
        for path, one in answers.items()
        if one.states == CALLED_HUNG and one.ranks > 1 and not one.cards
    ]


def drills(options: argparse.Namespace) -> int:
    """Run, end and judge each; print one row for each, and the share."""
    chosen = described(options.programs) if options.programs else of_ranks(options.only)
    same = right = total = 0
    with tempfile.TemporaryDirectory(prefix="perfwatch-autopsy-") as place:
        conditions = Conditions(
            Path(place), mode="run", patience_seconds=options.hang_timeout, limit_seconds=options.limit
        )
        for number, drill in enumerate(chosen):
            ending = TIME_OUT if options.time_out else list(ENDINGS)[number % len(ENDINGS)]
            if options.time_out and drill.ranks == 1:
                continue  # it does not meet by torchrun
            folder = Path(place) / f"{drill.name}-{ending}"
            try:
                live, after = ended(drill, ending, folder, conditions)
            except BrokenDrillError as error:
                print(f"{drill.name:<34} {ending:<8} broken: {str(error).splitlines()[0]}", flush=True)
                continue
            shutil.rmtree(folder, ignore_errors=True)
            total += 1
            alike = blamed(live, ending) == blamed(after, ending)
            same += alike
            right += after.cause in drill.causes or not drill.causes
            told = "the same culprit" if alike else f"{blamed(live, ending)}, after it {blamed(after, ending)}"
            print(
                f"{drill.name:<34} {ending:<8} live {live.cause}, after it {after.state} {after.cause}: {told}",
                flush=True,
            )
    print(f"the culprit of the live verdict: {same} of {total}; the right cause: {right} of {total}")
    return 0 if total else 1


def ended(drill: Drill, ending: str, folder: Path, conditions: Conditions) -> tuple[Verdict, Verdict]:
    """The verdict while it hung, and the one on what is left. Raises BrokenDrillError."""
    folder.mkdir()
    session = folder / "session"
    strength = drill.strengths[0] if drill.strengths else ""
    command = command_of(drill, strength, conditions.python)
    environment = {"PYTHONUNBUFFERED": "1"}
    if ending == TIME_OUT:
        logs = ("--log-dir", str(folder / "logs"), "--redirects", "3")
        command = [*command[:4], *logs, *command[4:]]
        environment["PERFWATCH_DRILL_TIMEOUT"] = f"{TIME_OUT_SECONDS:g}"
    prints_onset = Path(drill.program).is_absolute()
    with Program(asking.run_command(conditions, session, command), folder, environment, prints_onset) as program:
        program.wait_for_onset(ONSET_SECONDS)
        answer = asking.follow(
            conditions, program, session, lambda one: one.state == "hung", conditions.limit_seconds, bool
        )
        if answer.verdict is None or answer.verdict.state != "hung":
            raise BrokenDrillError(f"not called hung: {answer.verdict and answer.verdict.summary}")
        root = psutil.Process(program.child() or program.pid)
        everyone = {"SIGKILL": [root, *root.children(recursive=True)], "SIGTERM": [root]}.get(ending, [])
        for process in everyone:
            process.send_signal(ENDINGS[ending])
        program.ended(OVER_SECONDS + (TIME_OUT_SECONDS if ending == TIME_OUT else 0.0))
        asking.await_outcome(session, bool)
    told = [one.verdict for one in load(session).events if one.verdict is not None and one.verdict.state != "gone"]
    live = told[-1] if told else answer.verdict  # it may have learned more before it ended
    return live, judged([folder / "logs"] if ending == TIME_OUT else [session, folder / "output.txt"])


def blamed(verdict: Verdict, ending: str) -> tuple[int | None, int, int | None]:
    """Rank, process and worker of the first culprit; of logs alone the rank."""
    first = next(iter(verdict.culprits), None)
    if ending == TIME_OUT:
        return None if first is None else first.rank, 0, None
    return (None, 0, None) if first is None else (first.rank, first.pid, first.worker_pid)


def judged(paths: list[Path]) -> Verdict:
    """The verdict on some files."""
    guests = Guests()
    try:
        child = guests.child(identity_of(os.getpid()))
        return diagnose(recording_of(gather([str(path) for path in paths], child), ("perfwatch", "autopsy"), 0.0))
    finally:
        guests.close()


# A large job


def ranks(options: argparse.Namespace) -> int:
    """Simulate what a job leaves, and have the command judge it."""
    with tempfile.TemporaryDirectory(prefix="perfwatch-autopsy-", dir=options.folder) as place:
        folder = Path(place)
        size = leave(folder, options.ranks, int(options.gib * 2**30), options.ranks // 3)
        print(f"{options.ranks} ranks, {size / 2**30:.2f} GiB of dumps and logs", flush=True)
        begun = time.monotonic()
        said = folder / "verdict.json"
        command = [
            sys.executable,
            "-m",
            "perfwatch",
            "autopsy",
            str(folder),
            "--json",
            "--session",
            str(folder / "session"),
        ]
        with said.open("w") as output:
            process = subprocess.Popen(command, stdout=output)
        memory, cpu = watched(process)
        seconds = time.monotonic() - begun
        verdict = json.loads(said.read_text())
        culprits = [one["rank"] for one in verdict["culprits"]]
        told = f"{verdict['state']} {verdict['cause']} {culprits}: {verdict['summary'][:200]}"
        print(f"{seconds:.0f} s ({cpu:.0f} s of CPU), {memory / 2**30:.2f} GiB in all its processes together; {told}")
        return 0 if culprits == [options.ranks // 3] else 1


def watched(process: "subprocess.Popen[bytes]") -> tuple[int, float]:
    """The most memory that a command and its helpers have at one moment, in bytes, and the CPU that they use, in seconds."""
    most, cpu = 0, {}
    while process.poll() is None:
        now = 0
        try:
            root = psutil.Process(process.pid)
            for one in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    now += one.memory_info().rss
                    times = one.cpu_times()
                    cpu[one.pid] = times.user + times.system
        except psutil.Error:
            break
        most = max(most, now)
        time.sleep(0.1)
    process.wait()
    return most, sum(cpu.values())


def leave(folder: Path, count: int, size: int, faulty: int) -> int:
    """Dumps and logs of ranks of which one never came to the last all_reduce. Returns their size in bytes."""
    import pickle

    groups = {"0": list(range(count)), **{str(1 + n): list(range(8 * n, 8 * n + 8)) for n in range(count // 8)}}
    frames = [{"name": f"layer_{n}", "filename": f"/srv/job/model/block_{n}.py", "line": n} for n in range(30)]
    randomly = random.Random(0)
    block = [
        LINE.format(minute=n // 60 % 10, second=n % 60, step=n, loss=randomly.random(), norm=randomly.random(), rate=n)
        for n in range(6000)
    ]
    text = "".join(block)
    total = 0
    for rank in range(count):
        mine = {name: members for name, members in groups.items() if rank in members}
        entries: list[dict[str, object]] = []
        config = {
            name: {"name": name, "desc": "world" if name == "0" else "tensor", "ranks": str(members)}
            for name, members in mine.items()
        }
        status = {}
        for place, name in enumerate(mine):
            newest = 700 - (name == "0" and rank == faulty)
            status[str(place)] = {
                "last_enqueued_collective": newest,
                "last_started_collective": newest,
                "last_completed_collective": 699 if name == "0" else 700,
            }
            for number in range(newest - 300, newest + 1):
                over = number < 700 or name != "0"
                entries.append(
                    {
                        **ENTRY,
                        "record_id": len(entries),
                        "pg_id": place,
                        "process_group": (name, config[name]["desc"]),
                        "collective_seq_id": number,
                        "state": "completed" if over else "scheduled",
                        "retired": over,
                        "frames": [dict(one) for one in frames],
                    }
                )
        dump = pickle.dumps(
            {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}, protocol=2
        )
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(dump)
        log = folder / f"rank_{rank}.log"
        left = size // count - len(dump)
        with log.open("w") as file:
            while left > 0:
                file.write(text)
                left -= len(text)
            if rank != faulty:
                file.write(WATCHDOG.format(rank=rank, second=rank % 60, number=700))
        total += len(dump) + log.stat().st_size
    return total


def main() -> int:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(required=True)
    some = what.add_parser("drills")
    some.add_argument("--only", nargs="*", default=[], metavar="NAME")
    some.add_argument("--programs", nargs="*", type=Path, default=[], metavar="FILE")
    some.add_argument("--time-out", action="store_true", help="let gloo give up, and judge the logs alone")
    some.add_argument("--hang-timeout", type=float, default=None)
    some.add_argument("--limit", type=float, default=300.0, help="seconds until a verdict must be there")
    some.set_defaults(run=drills)
    many = what.add_parser("ranks")
    many.add_argument("--ranks", type=int, default=512)
    many.add_argument("--gib", type=float, default=2.0)
    many.add_argument("--folder", type=Path, default=None, help="where the files lie for a while")
    many.set_defaults(run=ranks)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no drill is left running
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
