"""A refusal to read memory names its reason and the command that removes it."""

import dataclasses
from pathlib import Path

import pytest

from perfwatch_probes.ptrace_access import Access, access, explain

SAME_USER = Access(our_uid=1000, target_uid=1000, has_capability=False, yama_scope=0, in_container=False)


@pytest.mark.parametrize(
    ("changes", "reason", "advice"),
    [
        ({"target_uid": 0}, "belongs to uid 0, we are uid 1000", "sudo"),
        ({"target_uid": 5, "in_container": True}, "belongs to uid 5, we are uid 1000", "as that user: sudo -u"),
        ({"our_uid": 0, "in_container": True}, "belongs to uid 1000, we are uid 0", "--cap-add SYS_PTRACE"),
        ({"yama_scope": 1}, "ptrace_scope is 1", "perfwatch run"),
        ({"yama_scope": 2}, "ptrace_scope is 2", "sudo"),
        ({"yama_scope": 3}, "until the next boot", "reboot"),
        ({"yama_scope": None}, "not dumpable", "sudo"),
        ({"in_container": True}, "not dumpable", "--cap-add SYS_PTRACE"),
        ({"has_capability": True}, "security module", "sudo"),
    ],
)
def test_each_refusal_has_its_own_reason_and_fix(changes: dict[str, object], reason: str, advice: str) -> None:
    """What would help differs: another user, a stricter Yama, a container."""
    refusal = explain(41, dataclasses.replace(SAME_USER, **changes))  # type: ignore[arg-type]

    assert "pid 41" in refusal.reason
    assert reason in refusal.reason
    assert advice in refusal.advice


def test_the_facts_come_from_proc(tmp_path: Path) -> None:
    """Owner, capability, Yama and container are read under the given roots."""
    for pid, text in (("41", "Uid:\t7\t7\t7\t7\n"), ("self", "CapEff:\t0000000000080000\n")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "status").write_text(text)
    (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text("1\n")
    (tmp_path / ".dockerenv").touch()

    facts = access(41, tmp_path / "proc", tmp_path)

    assert (facts.target_uid, facts.has_capability, facts.yama_scope, facts.in_container) == (7, True, 1, True)
