"""The job as a capture sees it, taken from what the watch knows."""

from collections.abc import Mapping

from perfwatch.captures.capture import Scene, Subject
from perfwatch.captures.kineto.keeper import ASK, FOLDER, trace_folder
from perfwatch.processes.armed import read_armed
from perfwatch.triage.case import Case
from perfwatch.verdict import Verdict
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.guest import Guests


def scene_of(
    case: Case, verdict: Verdict | None, place: AgentFolder | None, environment: Mapping[str, str], guests: Guests
) -> Scene:
    """Who the ranks are, how they do, and what is prepared.

    Args:
        case: the job now.
        verdict: the newest one; None when there is none yet.
        place: the job's place, when it was started by ``run``.
        environment: of perfwatch.
        guests: know as whom each process acts.
    """
    return Scene(
        subjects=tuple(
            Subject(
                pid=rank.pid,
                start_ticks=rank.process.start_ticks,
                rank=rank.rank,
                uid=rank.process.uid,
                workers=tuple(one.pid for one in case.job.workers(rank.pid) if one.alive),
                torch_loaded=rank.process.torch_loaded,
            )
            for rank in case.ranks
        ),
        armed=_armed(place),
        state=verdict.state if verdict else "",
        cause=(verdict.cause or "") if verdict else "",
        blamed=tuple(one.pid for one in verdict.culprits) if verdict else (),
        suspected=verdict.suspect.state if verdict and verdict.suspect else "",
        place=place,
        environment=dict(environment),
        guests=guests,
    )


def _armed(place: AgentFolder | None) -> dict[str, dict[str, str]]:
    """What was written down, and the profilers' endpoint, which is known by its being there."""
    found = read_armed(place)
    if place is not None and place.holds(f"{FOLDER}/{ASK}"):
        found["torch"] = {"ask": str(place.path / FOLDER / ASK), "traces": str(trace_folder(place.path, place.uid))}
    return found
