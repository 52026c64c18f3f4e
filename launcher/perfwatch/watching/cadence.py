"""How often each item is sampled: rarely while a job is calm, often while it is suspect."""

# A suspect job is looked at twice a second: two sightings within a second settle a decisive sign.
SUSPECT_SECONDS = 0.5
CALM_SECONDS = 1.0
CERTAIN_SECONDS, CERTAIN_DUMP_SECONDS = 2.0, 15.0  # after a hang was told
COLLECT_SECONDS = 0.2  # how soon a finished record is noticed, and who ends right after another
CALM_ENDED_SECONDS = 2.0  # a process that ended is noticed so late at most
# A scan of /proc costs 17 us a process of the machine. Who is new in a job that has been calm for long is no news for a while.
TREE_SECONDS, CALM_TREE_SECONDS, SETTLED_TREE_SECONDS = 1.0, 5.0, 10.0
USAGE_SECONDS, CALM_USAGE_SECONDS = 1.0, 10.0
MACHINE_SECONDS, CALM_MACHINE_SECONDS = 2.0, 10.0
JUDGE_SECONDS = 1.0
EARLY_SECONDS = 2.5  # of a suspicion, in which a small job is judged after every look: a decisive sign is told then
CALM_SAMPLE_SECONDS, FIRST_SAMPLES_SECONDS = 60.0, 8.0  # slowness shows in stacks, not in counters
# A sample takes 0.2 to 0.3 s of CPU at 64 processes, most of it to judge them: more of them, and it comes less often.
SAMPLED_PROCESSES, MOST_MINUTES = 16, 4.0
STARTING_SECONDS, BEGINNING_SECONDS = 45.0, 120.0  # of a watch
RECORD_SECONDS = 3.0
MOST_SAMPLED = 6  # processes sampled at once
MOST_GLANCED = 8  # ranks of a calm job looked at in one second
MOST_SWEPT = 24  # processes swept at once
EARLY_DUMPS, EARLY_DUMP_SECONDS, LATE_DUMP_SECONDS = 3, 0.7, 4.0
CALM_AFTER_SECONDS = 12.0  # of a healthy or slow verdict
GPU_DETAIL_SECONDS = 60.0  # of a suspicion: ten looks a second at eight cards are 4 MB a minute
NATIVE_AFTER_SECONDS, NATIVE_SECONDS = 4.0, 120.0  # a native profile costs a second of CPU: late and seldom
REMEMBER_SECONDS = 600.0  # in memory; the recording keeps what its disk budget allows


def tree_seconds(suspicious: bool, at: float) -> float:
    """How soon the job's processes are looked for again."""
    if suspicious:
        return TREE_SECONDS
    return CALM_TREE_SECONDS if at <= BEGINNING_SECONDS else SETTLED_TREE_SECONDS


def judge_seconds(early: bool) -> float:
    """How soon a suspect job is judged again."""
    return SUSPECT_SECONDS if early else JUDGE_SECONDS


def dump_seconds(dumps: int, certain: bool) -> float:
    """How soon after so many dumps of a suspicion comes the next one; seldom once a hang was told."""
    if certain:
        return CERTAIN_DUMP_SECONDS
    return EARLY_DUMP_SECONDS if dumps < EARLY_DUMPS else LATE_DUMP_SECONDS


def calm_sample(told: str, at: float, processes: int) -> float:
    """How soon a calm job is sampled again; one that has begun just now, or of which nothing is known yet, before long."""
    soon = at <= (STARTING_SECONDS if told else BEGINNING_SECONDS)
    return (
        FIRST_SAMPLES_SECONDS
        if soon
        else CALM_SAMPLE_SECONDS * min(MOST_MINUTES, max(1.0, processes / SAMPLED_PROCESSES))
    )
