"""A large job on one machine: many processes and threads around one training loop; with --stuck it stops moving.

Idle threads wake every few seconds, as those of real libraries do. Says every second how many steps it has made, like
``measured_loop``.
"""

import argparse
import os
import threading
import time

STUCK_AFTER_STEPS = 500


def crowd(threads: int) -> None:
    """Start threads that do next to nothing."""
    for number in range(threads):
        threading.Thread(target=idle, args=(number,), daemon=True, name=f"pool-{number}").start()


def idle(number: int) -> None:
    """Wake now and then, never all at once."""
    while True:
        time.sleep(5.0 + number % 7)


def main() -> None:
    """Fork the crowd before torch is imported, then train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2000)
    parser.add_argument("--stuck", action="store_true", help=f"rest after {STUCK_AFTER_STEPS} steps")
    options = parser.parse_args()
    each = options.threads // options.processes - 1
    for _ in range(options.processes - 1):
        if os.fork() == 0:
            crowd(each)
            idle(0)
    crowd(each)
    import measured_loop

    measured_loop.main(steps_before_rest=STUCK_AFTER_STEPS if options.stuck else None)


if __name__ == "__main__":
    main()
