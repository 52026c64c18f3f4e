"""Snapshots of a job on many hosts that nobody has: 8 ranks a host in one all_reduce, and one of them with a stuck worker; or all go on.

Made of the same records as real ones; ``scripts/measure fleet`` times their merge, and tests count its work.
"""

from perfwatch.fleet.merge.compacting import compact, numbered
from perfwatch.fleet.merge.snapshot import JobView, Snapshot
from perfwatch.jobs.identity import identity_of
from perfwatch.recording.recording import Record
from perfwatch.recording.session import Machine, Session
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch_probes.readings import ANY_READING, Frame, Process, Stack, Thread, Wait

RANKS_A_HOST = 8
LOOK_SECONDS = 8
SILENT_SECONDS = 300.0
C10D = "/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/env/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
WORKER = "/env/lib/python3.12/site-packages/torch/utils/data/_utils/worker.py"
ALL_REDUCE = (
    Frame("all_reduce", C10D, 2806),
    Frame("wrapper", "/env/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", 81),
    Frame("average", "/app/train.py", 57),
    Frame("train", "/app/train.py", 104),
    Frame("<module>", "/app/train.py", 130),
)
WAITS_FOR_DATA = (
    Frame("poll", "/usr/lib/python3.12/multiprocessing/connection.py", 257),
    Frame("get", "/usr/lib/python3.12/multiprocessing/queues.py", 113),
    Frame("_try_get_data", LOADER, 1275),
    Frame("_get_data", LOADER, 1444),
    Frame("__next__", LOADER, 726),
    Frame("train", "/app/train.py", 99),
    Frame("<module>", "/app/train.py", 130),
)
FORWARD = (
    Frame("forward", "/app/model.py", 41),
    Frame("train", "/app/train.py", 101),
    Frame("<module>", "/app/train.py", 130),
)
BACKWARD = (
    Frame("backward", "/env/lib/python3.12/site-packages/torch/_tensor.py", 625),
    Frame("train", "/app/train.py", 102),
    Frame("<module>", "/app/train.py", 130),
)
ASLEEP = (
    Frame("__getitem__", "/app/train.py", 31),
    Frame("fetch", "/env/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py", 54),
    Frame("_worker_loop", WORKER, 358),
)


def snapshots(
    hosts: int, stuck_rank: int | None = None, ranks_a_host: int = RANKS_A_HOST, *, going: bool = False
) -> list[Snapshot]:
    """One for each host. ``stuck_rank``: the rank whose worker sleeps; all others wait for it. None: all wait for nobody.

    ``going``: none waits, all compute.
    """
    return [_snapshot(host, hosts * ranks_a_host, stuck_rank, ranks_a_host, going) for host in range(hosts)]


def _snapshot(host: int, world_size: int, stuck_rank: int | None, ranks_a_host: int, going: bool) -> Snapshot:
    session = Session(
        version="0.1.0",
        created=1_795_175_484.0 + host,
        mode="attach",
        machine=Machine(name=f"node-{host}", kernel="6.1", architecture="x86_64", cpus=96, memory_bytes=2**40),
        command=("torchrun", "train.py"),
        root_pids=(100,),
        conditions={"patience_seconds": 60.0},
    )
    records: list[Record] = [Record(0.0, _process(100, 1, None, world_size))]
    for local in range(ranks_a_host):
        rank, pid = host * ranks_a_host + local, 1000 + local
        records.append(Record(0.0, _process(pid, 100, rank, world_size)))
        if going:
            records += _going(pid)
            continue
        stuck = rank == stuck_rank
        records += _still(
            pid, WAITS_FOR_DATA if stuck else ALL_REDUCE, Wait(call="futex", number=202, kind="futex", forever=True)
        )
        if stuck:
            records.append(Record(0.0, _process(2000, pid, rank, world_size, "pt_data_worker")))
            sleep = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=900_000.0)
            records += _still(2000, ASLEEP, sleep)
    records.sort(key=lambda record: record.at)
    case = Case(History(records, LOOK_SECONDS), session)
    kept, left_out = compact(case)
    view = JobView(
        identity=identity_of(case.job),
        session=session,
        end=float(LOOK_SECONDS),
        verdict=judge(case),
        ranks=tuple(sorted(numbered(case).values())),
        records=kept,
        left_out=left_out,
    )
    return Snapshot(
        version="0.1.0", host=f"node-{host}", place=f"boot-{host}", made=session.created + LOOK_SECONDS, jobs=(view,)
    )


def _process(pid: int, parent: int, rank: int | None, world_size: int, name: str = "python") -> Process:
    names = (
        {"MASTER_ADDR": "node-0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "run-7"} if rank is not None else {}
    )
    return Process(
        pid=pid,
        start_ticks=pid,
        parent_pid=parent,
        name=name,
        command=("python", "-u", "train.py", "--config", "config.yaml"),
        executable="python3.12",
        python=True,
        torch_loaded=True,
        uid=1000,
        age_seconds=5000.0,
        rank=rank,
        local_rank=None if rank is None else rank % RANKS_A_HOST,
        world_size=None if rank is None else world_size,
        environment=names,
    )


def _still(pid: int, frames: tuple[Frame, ...], wait: Wait) -> list[Record]:
    """Looks at a thread that does not move: one a second, and a stack every other second."""
    found: list[Record] = []
    for second in range(LOOK_SECONDS):
        looks: list[ANY_READING] = [
            Thread(
                pid=pid,
                tid=pid,
                name="python",
                state="S",
                cpu_seconds=812.4,
                run_seconds=812.4,
                run_delay_seconds=0.2,
                voluntary_switches=4711,
                involuntary_switches=11,
                ran_ago_seconds=SILENT_SECONDS + second,
                wchan="futex_wait_queue",
                wait=wait,
                read_calls=10,
                write_calls=10,
            )
        ]
        if second % 2 == 0:
            looks.append(Stack(pid=pid, tid=pid, thread="MainThread", frames=frames, samples=20, span_seconds=1.0))
        found += [Record(float(second), look) for look in looks]
    return found


def _going(pid: int) -> list[Record]:
    """Looks at a thread that computes all the time: one a second, and a stack, now in the forward pass and now in backward."""
    found: list[Record] = []
    for second in range(LOOK_SECONDS):
        busy = 812.4 + 0.97 * second
        thread = Thread(
            pid=pid,
            tid=pid,
            name="python",
            state="R",
            cpu_seconds=busy,
            run_seconds=busy,
            run_delay_seconds=0.2,
            voluntary_switches=4711 + 40 * second,
            involuntary_switches=11,
            ran_ago_seconds=0.0,
        )
        frames = BACKWARD if second % 2 else FORWARD
        stack = Stack(pid=pid, tid=pid, thread="MainThread", frames=frames, samples=20, span_seconds=1.0)
        found += [Record(float(second), look) for look in (thread, stack)]
    return found
