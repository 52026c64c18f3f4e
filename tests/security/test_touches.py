"""Which code may touch a file, a socket or a program at all, and why that is none that a job has named.

``test_root_is_a_guest`` watches real commands; this holds the code to it: a module that begins to open things has to say here whose they
are. Everything that a job names goes through ``perfwatch_probes.guest``.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.without_root

# The packages that handle what a job says, and what their modules may touch.
KERNEL = "files of the kernel, by paths made of its own root and numbers"
OURS = "files of our own: the session, our user's place in shared memory, our programs; what ``run`` makes as the user who typed it"
GUEST = "runs in a guest, as the job's user"
MAY_TOUCH = {
    "probes/perfwatch_probes/guest.py": GUEST,
    "probes/perfwatch_probes/flight_recorder.py": GUEST,
    "probes/perfwatch_probes/cpu_clock.py": KERNEL,
    "probes/perfwatch_probes/descriptors.py": KERNEL,
    "probes/perfwatch_probes/filesystem.py": KERNEL,
    "probes/perfwatch_probes/inner_pids.py": KERNEL,
    "probes/perfwatch_probes/locked_files.py": KERNEL,
    "probes/perfwatch_probes/output.py": KERNEL,
    "probes/perfwatch_probes/sockets.py": KERNEL,
    "probes/perfwatch_probes/terminals.py": KERNEL,
    "probes/perfwatch_probes/thread_ids.py": KERNEL,
    "probes/perfwatch_probes/waits.py": KERNEL,
    "probes/perfwatch_probes/sessions.py": KERNEL,
    "probes/perfwatch_probes/ptrace_access.py": KERNEL,
    "probes/perfwatch_probes/cgroup.py": KERNEL,
    "probes/perfwatch_probes/gpu.py": KERNEL,
    "probes/perfwatch_probes/nccl_client.py": GUEST,
    "probes/perfwatch_probes/deadline.py": OURS,
    "probes/perfwatch_probes/errand.py": OURS,
    "probes/perfwatch_probes/external.py": OURS,
    "probes/perfwatch_probes/native.py": OURS,
    "probes/perfwatch_probes/stacks.py": OURS,
    "probes/perfwatch_probes/stuck_guests.py": KERNEL,
    "probes/perfwatch_probes/tail.py": OURS,
    "launcher/perfwatch/processes/armed.py": OURS,
    "launcher/perfwatch/captures/as_user.py": GUEST,
    "launcher/perfwatch/captures/exits.py": GUEST,
    "launcher/perfwatch/captures/flame.py": OURS,
    "launcher/perfwatch/captures/guard.py": KERNEL,
    "launcher/perfwatch/captures/kineto_link.py": GUEST,
    "launcher/perfwatch/captures/ncu.py": GUEST,
    "launcher/perfwatch/captures/ncu_attached.py": GUEST,
    "launcher/perfwatch/captures/ncu_files.py": GUEST,
    "launcher/perfwatch/captures/nsys.py": GUEST,
    "launcher/perfwatch/captures/kineto/endpoint.py": OURS,
    "launcher/perfwatch/captures/kineto/keeper.py": OURS,
    "launcher/perfwatch/captures/nsight/choosing.py": OURS,
    "launcher/perfwatch/captures/nsight/finding.py": OURS,
    "launcher/perfwatch/captures/nsight/importer.py": OURS,
    "launcher/perfwatch/captures/nsight/ncu_attach.py": OURS,
    "launcher/perfwatch/captures/nsight/ncu_report.py": OURS,
    "launcher/perfwatch/captures/nsight/nsys_report.py": OURS,
    "launcher/perfwatch/captures/nsight/nsys_session.py": OURS,
    "launcher/perfwatch/captures/nsight/placeholder.py": OURS,
    "launcher/perfwatch/captures/nsight/second_run.py": OURS,
    "launcher/perfwatch/captures/nsight/under_ncu.py": OURS,
    "launcher/perfwatch/processes/programs.py": OURS,
    "launcher/perfwatch/captures/stacks.py": OURS,
    "launcher/perfwatch/captures/taking.py": OURS,
    "launcher/perfwatch/captures/torch_files.py": GUEST,
    "launcher/perfwatch/captures/torch_memory.py": GUEST,
    "launcher/perfwatch/captures/torch_profiler.py": GUEST,
    "launcher/perfwatch/processes/control.py": OURS,
    "launcher/perfwatch/processes/own_folders.py": OURS,
    "launcher/perfwatch/processes/place.py": OURS,
    "launcher/perfwatch/daemon/housekeeping.py": OURS,
    "launcher/perfwatch/daemon/serving.py": OURS,
    "launcher/perfwatch/daemon/sharing.py": OURS,
}
HANDLES_JOBS = (
    "probes",
    "launcher/perfwatch/captures",
    "launcher/perfwatch/watching",
    "launcher/perfwatch/daemon",
    "launcher/perfwatch/triage",
)
ALONE = (
    "launcher/perfwatch/processes/control.py",
    "launcher/perfwatch/jobs/discovery.py",
    "launcher/perfwatch/dmon/rows.py",
    "launcher/perfwatch/jobs/other_trees.py",
    "launcher/perfwatch/processes/own_folders.py",
    "launcher/perfwatch/processes/place.py",
    "launcher/perfwatch/jobs/target.py",
    "launcher/perfwatch/watching/watch.py",
)
_FUNCTIONS = {
    "os": frozenset(
        "open stat lstat listdir scandir walk access statvfs unlink remove rename replace mkdir makedirs rmdir chmod chown lchown "
        "link symlink mkfifo truncate utime execv execve execvp execvpe posix_spawn posix_spawnp system".split()
    ),
    "subprocess": frozenset("Popen run call check_call check_output".split()),
    "socket": frozenset({"create_connection"}),
    "shutil": frozenset("rmtree copy copyfile copytree move which".split()),
    "tempfile": frozenset("mkdtemp mkstemp TemporaryDirectory TemporaryFile NamedTemporaryFile".split()),
}
_METHODS = frozenset(
    "open write_text write_bytes lstat exists is_file is_dir is_symlink glob rglob iterdir unlink rename chmod rmdir touch "
    "symlink_to connect bind".split()
)


def modules(repository: Path) -> Iterator[str]:
    """Those that handle what a job says."""
    for folder in HANDLES_JOBS:
        yield from (str(path.relative_to(repository)) for path in sorted((repository / folder).rglob("*.py")))
    yield from ALONE


def touches(source: str) -> set[str]:
    """The calls in a module that touch a file, a socket or a program."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            found.add("open")
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            if called.attr in _FUNCTIONS.get(called.value.id, ()):
                found.add(f"{called.value.id}.{called.attr}")
            elif called.value.id not in _FUNCTIONS and called.attr in _METHODS:
                found.add(f".{called.attr}")
        elif isinstance(called, ast.Attribute) and called.attr in _METHODS:
            found.add(f".{called.attr}")
    return found


# A socket's bind of NVML's names, and of a partial function: no file.
_OTHER_MEANING = {
    "launcher/perfwatch/watching/watch.py": {".bind"},
    "probes/perfwatch_probes/group_variables.py": {".bind"},
    "probes/perfwatch_probes/gpu_binding.py": set(),
}


def test_a_module_that_touches_files_says_whose_they_are(repository: Path) -> None:
    """Neither triage nor any other module that handles a job's words opens something by itself."""
    found = {name: touches((repository / name).read_text()) for name in modules(repository)}
    unsaid = {name: calls - _OTHER_MEANING.get(name, set()) for name, calls in found.items() if name not in MAY_TOUCH}

    assert {name: calls for name, calls in unsaid.items() if calls} == {}


def test_no_module_is_excused_that_touches_nothing(repository: Path) -> None:
    """The table names no more than there is."""
    assert [name for name in MAY_TOUCH if not touches((repository / name).read_text())] == []


def test_no_module_follows_the_root_of_a_process_but_a_guest(repository: Path) -> None:
    """A path below /proc/PID/root or cwd resolves links against our own root: only a guest may be led there."""
    leading = ("/root/", "/root{", '"root"', "/cwd/")
    found = [
        name
        for name in modules(repository)
        if MAY_TOUCH.get(name) != GUEST and any(word in (repository / name).read_text() for word in leading)
    ]

    assert found == []
