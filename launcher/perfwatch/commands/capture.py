"""``perfwatch capture``: a bounded window of a real profiler on a running job."""

import sys
from typing import TYPE_CHECKING, Annotated

from perfwatch.attach.asked import Container, Pod, Slurm
from perfwatch.options import Argument, Exit, Json, OneOf, Option, Seconds

OF_MEMORY = ("stacks", "flame")  # read the memory of the job
KINDS = ("torch", "memory", "nsys", "ncu", "flame", "stacks")

if TYPE_CHECKING:
    from perfwatch.captures.capture import Outcome, Request


def capture(
    kind: Annotated[str, Argument("KIND", help="torch, memory, nsys, ncu, flame or stacks.", kind=OneOf(KINDS))],
    target: Annotated[
        str | None,
        Argument(
            "[PID|PATTERN|SESSION]",
            help="Any process of the job, a part of its command line, its directory or its recording; the only job by default.",
            no_option=("--pid", "-p"),
        ),
    ] = None,
    slurm: Slurm = None,
    pod: Pod = None,
    container: Container = None,
    session: Annotated[
        str | None,
        Option(metavar="SESSION", help="That of the watched job; without a watcher, the folder for the files."),
    ] = None,
    steps: Annotated[int | None, Option(metavar="N", min=1, help="How many steps; 5 where they are counted.")] = None,
    seconds: Annotated[
        float | None, Option(metavar="TIME", kind=Seconds(0.05), help="How long, instead of steps.")
    ] = None,
    rank: Annotated[
        str, Option(metavar="0,3|all", help="Which ranks; flame: PID's by default, else the culprit's.")
    ] = "all",
    stacks: Annotated[bool, Option("--stacks", help="torch: with Python stacks.")] = False,
    shapes: Annotated[bool, Option("--shapes", help="torch: with the shapes of inputs.")] = False,
    memory: Annotated[bool, Option("--memory", help="torch: with allocations.")] = False,
    native: Annotated[bool, Option("--native", help="stacks: with C and C++ frames, of a rank that hangs.")] = False,
    show_locals: Annotated[
        bool, Option("--locals", help="stacks: with variables, on the terminal alone; secrets are left out.")
    ] = False,
    threads: Annotated[bool, Option("--threads", help="stacks: with every thread of every process.")] = False,
    over_nccl: Annotated[
        bool, Option("--over-nccl", help="nsys: also for ranks that communicate over NCCL; one such job has crashed.")
    ] = False,
    rate: Annotated[int | None, Option(metavar="HZ", min=1, max=200, help="flame: samples a second; 50.")] = None,
    most_mib: Annotated[int, Option(metavar="MIB", min=1, help="How large the files may be, together.")] = 64,
    json: Json = False,
) -> None:
    """Profile a running job for a moment.

    Runs a profiler for a short window, reads the result and reports what it cost the job. A job that perfwatch run has
    started is armed for this, any other only if its environment was. A capture that could harm the job is refused. Exit
    codes: 61 not armed, or no such profiler here; 62 refused; 63 failed.

    \b
    Examples:
      perfwatch capture torch              the watched job: 5 steps of each rank
      perfwatch capture torch 4242 --seconds 2 --rank 0,3
      perfwatch capture torch --stacks --shapes --steps 2
      perfwatch capture stacks 4242                every rank and worker, folded
      perfwatch capture stacks 4242 --locals       with their variables
      perfwatch capture flame --rank 1 --seconds 10
      perfwatch capture nsys --seconds 2           after: perfwatch run --arm nsys
      perfwatch capture torch --json | jq -r '.files[].path'
    """
    from perfwatch.attach.asked import process
    from perfwatch.captures.capture import Request
    from perfwatch.errors import UsageError
    from perfwatch.processes.control import watchers
    from perfwatch.text import say
    from perfwatch.top import asking
    from perfwatch.watching.capturing import find

    chosen = find(kind)
    given = {"stacks": stacks, "shapes": shapes, "memory": memory, "native": native, "over-nccl": over_nccl}
    given |= {"locals": show_locals, "threads": threads}
    options = {name: "yes" for name, on in given.items() if on} | ({"rate": str(rate)} if rate is not None else {})
    wrong = [name for name in options if name not in chosen.OPTIONS]
    if wrong:
        takes = " ".join(f"[--{name}]" for name in chosen.OPTIONS)
        raise UsageError(f"a {kind} capture has no --{wrong[0]}", f"perfwatch capture {kind} {takes}".rstrip())
    if steps is not None and seconds is not None:
        raise UsageError("--steps and --seconds exclude each other", f"perfwatch capture {kind} --steps {steps}")
    ranks = _ranks(rank)
    named = any(one is not None for one in (target, slurm, pod, container))
    pid = process(target, slurm, pod, container, f"perfwatch capture {kind}") if named else None
    if pid is None and session is None and not watchers():
        pid = process(None, command=f"perfwatch capture {kind}")
    request = Request(
        kind=kind,
        steps=steps,
        seconds=seconds,
        ranks=ranks,
        pid=pid,
        options=options,
        most_bytes=most_mib * 2**20,
    )
    control = asking.find(pid, session if pid is None else None)
    at_once = kind == "stacks" and not native and not (pid is not None and session)
    if not at_once and (asked := [name for name in ("locals", "threads") if name in options]):
        raise UsageError(
            f"--{asked[0]} goes with neither --native nor --session", f"perfwatch capture stacks --{asked[0]}"
        )
    root = asking.root_of(control) if pid is None else pid
    if pid is None and root is not None and not json:
        say(sys.stderr, f"the watched job is pid {root}; of another one: perfwatch capture {kind} PID")
    outcome = _sampled(root, request, control is not None) if at_once else None
    if outcome is not None:
        pass
    elif control is not None:
        outcome = asking.capture_watched(control, request, lambda text: say(sys.stderr, text))
    else:
        assert pid is not None
        outcome = _alone(pid, request, session)
    _show(outcome, json)
    raise Exit(outcome.exit_code)


def _ranks(text: str) -> tuple[int, ...]:
    """``0,3`` in numbers; ``all`` is none named. Raises UsageError."""
    from perfwatch.errors import UsageError

    words = [] if text == "all" else text.split(",")
    if any(not word.strip().isdecimal() for word in words):
        raise UsageError(f"--rank {text}: numbers, or all", "--rank 0,3")
    return tuple(int(word) for word in words)


def _alone(pid: int, request: "Request", session: str | None) -> "Outcome":
    """The job has no watcher: sample it ourselves."""
    from perfwatch.attach.attached import Attached
    from perfwatch.processes.stop_signals import Leaving

    with Leaving() as leaving:
        typed = f"perfwatch capture {request.kind} {pid}"
        needs = typed if request.kind in OF_MEMORY else ""
        attached = Attached(pid, leaving, session=session, needs_memory=needs, needs_environment=typed)
        worth = False
        try:
            outcome = attached.capture(request, sys.stderr)
            worth = not outcome.error
            return outcome
        finally:
            attached.close() if worth else attached.discard()


def _sampled(pid: int | None, request: "Request", watched: bool) -> "Outcome | None":
    """Stacks at once; None where only the watcher can take them: the kernel may let it alone read the job's memory."""
    from perfwatch.captures import stacks
    from perfwatch.errors import PermissionDenied

    try:
        return None if pid is None else stacks.sample(pid, request)
    except PermissionDenied:
        if watched and not request.options.keys() & {"locals", "threads"}:
            return None
        raise


def _show(outcome: "Outcome", json: bool) -> None:
    import msgspec

    from perfwatch.captures.telling import told
    from perfwatch.text import clean, json_text

    if json:
        # The evidence is the recording's: a program gets the report.
        public = {"schema": "perfwatch.capture/1", **msgspec.to_builtins(outcome)}
        del public["readings"]
        print(msgspec.json.format(json_text(public)))
    if outcome.error or not json:
        stream = sys.stderr if outcome.error else sys.stdout
        for line in told(outcome):
            print(clean(f"perfwatch: {line}" if outcome.error and not line.startswith(" ") else line), file=stream)
