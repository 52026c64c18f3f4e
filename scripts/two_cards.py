"""Programs of two ranks on two cards whose faults others have named: what perfwatch says of them, whom it blames, how soon.

    scripts/two_cards.py -o results --injector PATH/inject_fault.py     all of it: twelve minutes
    scripts/two_cards.py -o results --only scenes,late --seconds 300    the other two sets
    scripts/two_cards.py -o results --tables                            the table again

Three sets: ``injector`` (NVIDIA's twelve faults, from nvidia-resiliency-ext's inject_fault.py, which is read from where it was fetched),
``scenes`` (Ray Train's seven) and ``late`` (one rank is late for four reasons). Each fault runs twice: attached, as a user would
have started it, and under ``perfwatch run``. What ends the job is watched by ``attach --watch`` from before. Rows are written as they
come; what is there already is not done again. Without two cards everything runs on gloo and shows that the programs work.
"""

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from perfwatch.drills.drill import Drill
from perfwatch.gauntlet import asking, rows
from perfwatch.gauntlet.attempt import Attempt, run_attempt
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.program import BrokenDrillError, Program, command_of
from perfwatch.verdict import Verdict

HERE = Path(__file__).resolve().parent / "two_cards"
UNITS = 12  # of the machine; an item takes some of them
DELAY_SECONDS = 8.0  # of healthy steps before a fault strikes
READY, READY_SECONDS, LONGEST_SECONDS, LEAST_SECONDS = re.compile(rb"^READY\s*$", re.MULTILINE), 120.0, 75.0, 25.0
FIRST_PORT, MOST_REPEATS = 28100, 3
ANY, ENDS = ("any",), ("crashed", "killed")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One program, and what is right to say of it; it takes ``units`` of the machine."""

    kind: str
    name: str
    program: str
    arguments: tuple[str, ...]
    states: tuple[str, ...]
    causes: tuple[str, ...]
    blamed: tuple[int, ...] = ()
    ranks: int = 2
    units: int = 6
    repeats: int = 1
    modes: tuple[str, ...] = ("attach", "run")

    @property
    def ends(self) -> bool:
        """It ends the job."""
        return self.states == ("gone",)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One item, once: what was said, after how many seconds from the onset."""

    item: Item
    mode: str
    repeat: int
    verdict: Verdict | None = None
    seconds: float = 0.0
    fault: str | None = None
    session: str = ""

    @property
    def state_right(self) -> bool:
        """The state is one of those that are right."""
        return self.verdict is not None and self.verdict.state in self.item.states

    @property
    def cause_right(self) -> bool:
        """State and cause are."""
        return self.state_right and (
            self.item.causes == ANY or (self.verdict is not None and self.verdict.cause in self.item.causes)
        )

    @property
    def named(self) -> list[int]:
        """The ranks that are blamed."""
        return sorted({one.rank for one in self.verdict.culprits if one.rank is not None}) if self.verdict else []

    @property
    def rank_right(self) -> bool | None:
        """The first rank that is blamed is one that is to blame; None where none is."""
        return None if not self.item.blamed else bool(self.named) and set(self.named) <= set(self.item.blamed)


def items(injector: str) -> Iterator[Item]:
    """All that there is, in the order in which it is done."""
    ending: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("WORKLOAD_EXC", ("crashed",)), ("ASYNC_EXC", ("crashed",)), ("SIGNAL_EXC", ("crashed",)), ("SIGINT", ENDS),
        ("SIGKILL", ("killed",)), ("SIGTERM", ("killed",)), ("OS_ABORT", ENDS), ("SEGFAULT", ENDS), ("GPU_ERROR", ENDS),
    )  # fmt: skip
    for fault, causes in ending:
        yield _injected(injector, fault, ("gone",), causes, units=2)
    yield _injected(injector, "SIGSTOP", ("hung",), ("stopped",), units=4)
    yield _injected(injector, "LOCK_GIL", ("hung",), ("held_gil", "endless_python"), units=4)
    yield _injected(injector, "GPU_SLEEP", ("hung",), ("stuck_kernel",), units=12)
    apart = ("mismatched_collective", "stalled_collective")
    yield _scene("straggler", ("hung",), ("stalled_collective",), (1,))
    yield _scene("dead", ("gone",), ENDS, (1,), units=3)
    yield _scene("mismatch", ("hung", "busy"), (*apart, "waiting_on_work"), (0, 1))
    yield _scene("skew", ("hung",), apart, (0, 1))
    yield _scene("shape", ("hung",), apart, (0, 1))
    yield _scene("healthy", ("healthy", "slow", "busy"), ANY, units=3)
    yield _scene("subset", ("hung",), ("stalled_collective",), (3,), ranks=4)
    for kind, causes, blamed, units in (
        ("stages", ("straggling_rank", "exposed_communication"), (1,), 12),
        ("competitor", ("shared_gpu", "straggling_rank"), (1,), 12),
        ("jitter", ("straggling_rank", "host_bound_python", "starved_by_transforms", "exposed_communication"), (), 6),
        ("shard", ("straggling_rank", "starved_by_transforms", "starved_by_storage"), (1,), 4),
    ):
        yield Item(
            kind="late", name=kind, program="late.py", arguments=(kind,), states=("slow",), causes=causes, blamed=blamed,
            units=units, repeats=3 if units < UNITS else 2, modes=("attach", "run") if units < UNITS else ("attach",),
        )  # fmt: skip


def _injected(injector: str, fault: str, states: tuple[str, ...], causes: tuple[str, ...], units: int) -> Item:
    return Item(
        kind="injector", name=fault, program="nano.py", arguments=(injector, fault, str(DELAY_SECONDS)), states=states,
        causes=causes, blamed=(1,), units=units,
    )  # fmt: skip


def _scene(
    name: str, states: tuple[str, ...], causes: tuple[str, ...], blamed: tuple[int, ...] = (), *, ranks: int = 2, units: int = 6
) -> Item:  # fmt: skip
    return Item(
        kind="scenes", name=name, program="scenes.py", arguments=(name,), states=states, causes=causes, blamed=blamed,
        ranks=ranks, units=units,
    )  # fmt: skip


class Machine:
    """What the items share; who came first begins first."""

    def __init__(self) -> None:
        self._free, self._changed, self._next = UNITS, threading.Condition(), 0

    @contextmanager
    def taken(self, turn: int, units: int) -> Iterator[None]:
        """So many units, when it is this one's turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == turn and self._free >= units)
            self._free, self._next = self._free - units, turn + 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += units
                self._changed.notify_all()


def main() -> int:
    """Run, a line for each row, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for rows and sessions")
    parser.add_argument("--injector", default="", help="path of inject_fault.py")
    parser.add_argument("--only", default="", help="these sets or names, separated by commas")
    parser.add_argument("--mode", default="attach,run")
    parser.add_argument("--seconds", type=float, default=86400.0, help="begin nothing that would not be done by then")
    parser.add_argument("--repeat", type=int, default=0, help="so often, instead of what the item says")
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    if not options.tables:
        run(folder, options)
    table(rows.load_as(folder, Row))
    return 0


def run(folder: Path, options: argparse.Namespace) -> None:
    """What is left to do, as much at once as the machine bears."""
    ends = time.monotonic() + options.seconds
    only = set(options.only.split(",")) if options.only else set()
    done = {(row.item.kind, row.item.name, row.mode, row.repeat) for row in rows.load_as(folder, Row)}
    injector = str(Path(options.injector).absolute()) if options.injector else ""
    todo = [
        (item, mode, repeat)
        for repeat in range(options.repeat or MOST_REPEATS)
        for item in items(injector)
        if repeat < (options.repeat or item.repeats)
        for mode in options.mode.split(",")
        if mode in item.modes
        and (not only or {item.kind, item.name} & only)
        and (item.kind != "injector" or injector)
        and (item.kind, item.name, mode, repeat) not in done
    ]
    machine, up, write = Machine(), threading.Event(), threading.Lock()
    clock = threading.Timer(options.seconds, up.set)
    clock.start()

    def one(turn: int) -> None:
        item, mode, repeat = todo[turn]
        with machine.taken(turn, item.units):
            if time.monotonic() > ends - LEAST_SECONDS:
                return
            try:
                row = attempted(item, mode, repeat, folder, turn, up)
            except Exception as error:
                row = Row(item=item, mode=mode, repeat=repeat, fault=f"{type(error).__name__}: {error}"[:600])
            if up.is_set() and row.verdict is None:
                return
            with write:
                rows.append(folder, row)
                print(f"{time.monotonic() - ends + options.seconds:5.0f} s {line(row)}", flush=True)

    with ThreadPoolExecutor(max(1, len(todo))) as pool:
        list(pool.map(one, range(len(todo))))
    clock.cancel()


def attempted(item: Item, mode: str, repeat: int, folder: Path, turn: int, up: threading.Event) -> Row:
    """One item, once."""
    name = f"{item.kind}-{item.name}"
    conditions = Conditions(folder=folder / "runs", mode=mode, limit_seconds=LONGEST_SECONDS)
    drill = Drill(
        name=name, program=str(HERE / item.program), summary="", state=item.states[0], causes=(), ranks=item.ranks,
        arguments=item.arguments,
    )  # fmt: skip
    environment = [("PYTHONUNBUFFERED", "1"), ("OMP_NUM_THREADS", "2")]
    if mode == "attach":  # alone on a host a job would have this service to itself
        environment.append(("NCCL_RAS_ADDR", f"localhost:{FIRST_PORT + turn}"))
    if mode == "attach" and item.ends:
        return watched(item, repeat, drill, conditions, dict(environment), up)
    attempt = Attempt(drill, "", repeat, tuple(environment), prints_onset=True)
    done, verdict = run_attempt(attempt, conditions, up.is_set)
    fault = f"broken: {done.broken}" if done.broken else done.fault
    return Row(
        item=item,
        mode=mode,
        repeat=repeat,
        verdict=verdict,
        seconds=done.seconds or 0.0,
        fault=fault,
        session=done.session,
    )


def watched(
    item: Item, repeat: int, drill: Drill, conditions: Conditions, environment: dict[str, str], up: threading.Event
) -> Row:
    """Attached before the fault, with ``--watch``: who looks only afterwards finds nothing."""
    folder = conditions.folder / f"{drill.name}-watched-{repeat}"
    folder.mkdir(parents=True)
    session = folder / "session"
    row = Row(item=item, mode="attach", repeat=repeat, session=str(session))
    with Program(command_of(drill, "", conditions.python), folder, environment, prints_onset=True) as program:
        ends = time.monotonic() + READY_SECONDS
        while not READY.search((folder / "output.txt").read_bytes()):
            if time.monotonic() > ends or program.ended(0.2) or up.is_set():
                return msgspec.structs.replace(row, fault=f"broken: never ready: {program.last_words()}"[:600])
        with (folder / "watch.txt").open("wb") as said:
            watch = subprocess.Popen(
                [*conditions.perfwatch, "attach", str(program.pid), "--watch", "--session", str(session)],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        try:
            program.wait_for_onset(READY_SECONDS, up.is_set)
            answer = asking.follow(
                conditions, program, session, lambda verdict: verdict.state == "gone", LONGEST_SECONDS, up.is_set
            )
        except BrokenDrillError as error:
            return msgspec.structs.replace(row, fault=f"broken: {error}"[:600])
        finally:
            try:
                watch.wait(5.0)
            except subprocess.TimeoutExpired:
                watch.terminate()
                watch.wait(20.0)
    return msgspec.structs.replace(row, verdict=answer.verdict, seconds=answer.seconds, fault=answer.fault)


def line(row: Row) -> str:
    """What was said, and what would have been right."""
    said = row.verdict
    words = (
        f"{said.state}/{said.cause} {said.confidence:.2f} ranks {row.named} after {row.seconds:.1f} s: {said.summary[:150]}"
        if said is not None
        else f"no verdict: {(row.fault or '')[-300:]}"
    )
    right = (
        "right"
        if row.cause_right and row.rank_right is not False
        else "STATE"
        if not row.state_right
        else "CAUSE"
        if not row.cause_right
        else "RANK "
    )
    return f"{right} {row.item.kind} {row.item.name} ({row.mode}) {words}"


def table(done: list[Row]) -> None:
    """How often state, cause and rank were right, and the seconds."""
    print(f"\n{'set':9} {'name':13} {'mode':7} {'n':>2} {'state':>5} {'cause':>5} {'rank':>5}  seconds; said")
    for key in sorted({(row.item.kind, row.item.name, row.mode) for row in done}):
        mine = [row for row in done if (row.item.kind, row.item.name, row.mode) == key]
        ranks = [row.rank_right for row in mine if row.rank_right is not None]
        said = ", ".join(
            f"{row.seconds:.1f} {row.verdict.state}/{row.verdict.cause} {row.named}" if row.verdict else "none"
            for row in mine
        )
        print(
            f"{key[0]:9} {key[1]:13} {key[2]:7} {len(mine):2} {sum(row.state_right for row in mine):5} "
            f"{sum(row.cause_right for row in mine):5} {f'{sum(ranks)}/{len(ranks)}' if ranks else '-':>5}  {said}"
        )
    print(f"all: {len(done)}, state {sum(row.state_right for row in done)}, cause {sum(row.cause_right for row in done)}, "
          f"rank {sum(row.rank_right is True for row in done)} of {sum(row.rank_right is not None for row in done)}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
