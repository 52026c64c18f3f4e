"""What the drills on a GPU share: the card, or a clear end without one; how long work on it takes.

Imported by the programs by path, like ``stage``.
"""

import statistics
import sys
import time

import torch


def device(products="high"):
    """Give the first card. Ends the program with a sentence where there is none.

    ``products``: torch's precision of fp32 matrix products; "high" allows TF32, "highest" (torch's default) does not.
    """
    if not torch.cuda.is_available():
        sys.exit("this program trains on an NVIDIA GPU, and this Python's torch sees none")
    torch.set_float32_matmul_precision(products)
    return torch.device("cuda", 0)


def typical_seconds(step):
    """How long ``step`` takes on the card here and now (median of five after three to warm up)."""
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.monotonic()
        step()
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    return statistics.median(times[3:])
