"""The lines that the GPU waits for as a speedscope profile: weights are seconds in which no kernel was resident."""

from perfwatch.errors import UsageError
from perfwatch.report.gpu_idle import Awaited, off_gpu
from perfwatch.report.story import Story
from perfwatch.text import clean, json_text

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def as_speedscope(story: Story) -> str:
    """One sampled profile per rank; see speedscope's file format.

    Raises:
        UsageError: no card was looked at while stacks were sampled.
    """
    found = off_gpu(story.case)
    if found is None:
        raise UsageError(
            "this recording does not show what a GPU waited for: no card was sampled together with stacks",
            "perfwatch report SESSION --format html shows what there is",
        )
    frames: dict[tuple[str, str, int], int] = {}
    ranks: dict[int | None, list[Awaited]] = {}
    for one in found.awaited:
        ranks.setdefault(one.rank, []).append(one)
    profiles = []
    for rank, stacks in ranks.items():
        samples = [
            [frames.setdefault((frame.function, frame.file, frame.line), len(frames)) for frame in reversed(one.frames)]
            for one in stacks
        ]
        profiles.append(
            {
                "type": "sampled",
                "name": "the GPU waits" if rank is None else f"the GPU of rank {rank} waits",
                "unit": "seconds",
                "startValue": 0.0,
                "endValue": sum(one.idle_seconds for one in stacks),
                "samples": samples,
                "weights": [one.idle_seconds for one in stacks],
            }
        )
    document = {
        "$schema": SCHEMA,
        "exporter": f"perfwatch {story.recording.session.version}",
        "name": clean(story.title),
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": clean(name), "file": clean(file), "line": line} for name, file, line in frames]},
        "profiles": profiles,
    }
    return json_text(document) + "\n"
