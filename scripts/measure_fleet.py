"""How long the merge of a large job takes, and how much memory: simulated snapshots of all hosts, from the wire to the verdict.

    scripts/measure fleet                    # 512, 1,024, 2,048 and 4,096 ranks
    scripts/measure fleet --ranks 4096 --stuck 3001
    scripts/measure fleet --ranks 4096 --going          no rank is stuck

Each size runs in a process of its own; the memory is the most that it ever had (ru_maxrss), interpreter and imports included.
"""

import argparse
import json
import resource
import subprocess
import sys
import time


def measure(ranks: int, stuck: int | None) -> dict[str, float | str]:
    """Merge and judge one job; the snapshots are made and packed before the clock starts."""
    from simulated_fleet import RANKS_A_HOST, snapshots

    from perfwatch.fleet import wire
    from perfwatch.fleet.merge.hosts import HostReport
    from perfwatch.fleet.merge.job_wide import judge_hosts
    from perfwatch.fleet.merge.merging import Part, merge

    nonce = "0123456789abcdef"
    answers = [
        (one.host, wire.lines(one, nonce)) for one in snapshots(ranks // RANKS_A_HOST, stuck, going=stuck is None)
    ]
    sent = sum(len(line) + 1 for _, lines in answers for line in lines)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, used = time.perf_counter(), time.process_time()
    parts = [Part(host, wire.read(lines, nonce).jobs[0]) for host, lines in answers]
    read = time.perf_counter()
    reports = [HostReport(host=part.host, state="answered", ranks=part.view.ranks) for part in parts]
    merged = merge(parts, parts[0].view.session)
    together = time.perf_counter()
    verdict, folded = judge_hosts(merged, parts, reports)
    judged = time.perf_counter()
    return {
        "ranks": ranks,
        "sent_mib": sent / 2**20,
        "before_mib": before / 2**10,
        "read_seconds": read - began,
        "merge_seconds": together - read,
        "judge_seconds": judged - together,
        "seconds": judged - began,
        "cpu_seconds": time.process_time() - used,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "cause": verdict.cause or verdict.state,
        "culprit": f"rank {verdict.culprits[0].rank} on {verdict.culprits[0].host}" if verdict.culprits else "",
        "groups": len(folded.groups),
    }


def main() -> None:
    """Measure each size in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    parser.add_argument("--stuck", type=int, default=301, help="the rank whose worker sleeps")
    parser.add_argument("--going", action="store_true", help="none is: all ranks compute")
    parser.add_argument("--one", action="store_true", help="measure here and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.ranks[0], None if options.going else options.stuck)))
        return
    print("ranks  sent MiB  read s merge s judge s total s   CPU s  peak MiB  verdict")
    for ranks in options.ranks:
        command = [sys.executable, __file__, "--one", "--ranks", str(ranks), "--stuck", str(options.stuck)]
        command += ["--going"] if options.going else []
        one = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        seconds = (one["read_seconds"], one["merge_seconds"], one["judge_seconds"], one["seconds"], one["cpu_seconds"])
        print(f"{one['ranks']:5}  {one['sent_mib']:8.2f}", *(f"{value:7.2f}" for value in seconds), end="  ")
        print(f"{one['peak_mib']:8.0f}  {one['cause']}, {one['culprit']}")


if __name__ == "__main__":
    main()
