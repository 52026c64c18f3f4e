"""The training loop that measurements use: small, real, steady. Says four times a second how many steps it has made.

JSON lines on stdout: monotonic time, steps so far, CPU seconds of the process.
"""

import json
import resource
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCH, FEATURES = 64, 512
REST_SECONDS = 10**6
SAID_EVERY_SECONDS = 0.25


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Cheap samples: the trainer is never starved."""

    def __init__(self) -> None:
        self.rows = torch.randn(1024, FEATURES)

    def __len__(self) -> int:
        """So many that no epoch ends while somebody measures."""
        return 10**9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Give a row and a label."""
        return self.rows[index % 1024], index % 10


def main(steps_before_rest: int | None = None) -> None:
    """Train until killed; or make so many steps and then never another one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    said = time.monotonic()
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=1)
    for steps, (rows, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(rows), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        resting = steps == steps_before_rest
        if (now := time.monotonic()) - said >= SAID_EVERY_SECONDS or resting:
            said = now
            usage = resource.getrusage(resource.RUSAGE_SELF)
            line = {"at": now, "steps": steps, "cpu_seconds": usage.ru_utime + usage.ru_stime}
            print(json.dumps(line), flush=True)
        if resting:
            time.sleep(REST_SECONDS)


if __name__ == "__main__":
    main()
