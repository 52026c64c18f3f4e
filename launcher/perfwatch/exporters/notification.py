"""The JSON that is posted: ``text`` for Slack and whatever reads as it does, the facts for programs beside it."""

from typing import Any

import msgspec

from perfwatch.exporters.announcer import Change
from perfwatch.recording.redaction import redact_tree
from perfwatch.recording.session import Session
from perfwatch.text import clean
from perfwatch.verdict import JobLabels, confidence_word

SCHEMA = "perfwatch.notification/1"
LONGEST_TEXT = 3000  # Slack cuts at 40,000, people long before
MOST_CULPRITS, MOST_EVIDENCE, MOST_NEXT = 4, 4, 2
ACTIONS_SAID = {  # what a person may do at once; the others say themselves what is at fault
    "restart": "end the job and start it again; it cannot continue",
    "replace_node": "drain this node and start the job again on another one",
}
_KEPT = ("state", "cause", "confidence", "summary", "owner", "at", "onset", "silent_seconds", "last_step",
         "action", "job")  # fmt: skip


def notification(change: Change, session: Session, folder: str) -> dict[str, Any]:
    """What to post about a change.

    Args:
        change: what the verdict was and is.
        session: of which job.
        folder: where the recording lies; empty where there is none.
    """
    verdict = msgspec.to_builtins(change.verdict)
    facts = {
        "schema": SCHEMA,
        "host": session.machine.name,
        "session": folder,
        "root_pid": session.root_pids[0] if session.root_pids else None,
        "command": list(session.command),
        "before": None if change.before is None else {"state": change.before[0], "cause": change.before[1]},
        **{name: verdict[name] for name in _KEPT},
        "culprits": verdict["culprits"][:MOST_CULPRITS],
        "evidence": verdict["evidence"][:MOST_EVIDENCE],
        "next": verdict["next"][:MOST_NEXT],
    }
    redacted: dict[str, Any] = redact_tree({"text": _text(change, session, folder), "perfwatch": facts})
    return redacted


def _text(change: Change, session: Session, folder: str) -> str:
    verdict = change.verdict
    cause = f" {verdict.cause}" if verdict.cause else ""
    before = f" (was {change.before[0]})" if change.before else ""
    whose = f" ({words})" if (words := _whose(verdict.job)) else ""
    lines = [
        f"perfwatch on {session.machine.name}: {verdict.state.upper()}{cause}, confidence {confidence_word(verdict.confidence)}{before}",
        verdict.summary,
        f"job: {' '.join(session.command)}{whose}",
        *([f"action: {ACTIONS_SAID[verdict.action]}"] if verdict.action in ACTIONS_SAID else []),
        *(f"next: {step}" for step in verdict.next[:1]),
        *([f"recording: {folder}"] if folder else []),
    ]
    text = "\n".join(clean(line) for line in lines)[:LONGEST_TEXT]
    # Slack's own rule: these three, or a name that the job chose could call every member (<!channel>).
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _whose(job: JobLabels | None) -> str:
    """``user ann, Slurm job 4711, pod team-a/train-0``."""
    if job is None:
        return ""
    pod = "/".join(one for one in (job.namespace, job.pod) if one)
    known = {"user": job.user, "Slurm job": job.slurm_job_id, "pod": pod, "run": job.run_id, "W&B": job.wandb_run}
    return ", ".join(f"{what} {name}" for what, name in known.items() if name)
