"""FIELD
source: huggingface/datasets#6319 (map with many processes slows to a crawl at 80 % and never finishes: at the end one process is at work)
mechanism: datasets' map with two processes prepares the training set before any step; one shard holds all of the long rows, so one
    process has ended its part while the other goes on for minutes in plain Python
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host, starting
blame: none
twin: trl_sft_prepare
"""

import os
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()
signal.alarm(300)

import torch
from datasets import Dataset

torch.set_num_threads(1)


def count_pairs(row):
    counts, text = {}, row["text"]
    for left, right in zip(text, text[1:], strict=False):
        counts[left + right] = counts.get(left + right, 0) + 1
    return {"pairs": len(counts), "most": max(counts.values())}


if __name__ == "__main__":
    texts = ["short row of a few words" for _ in range(2_000)] + ["a very long row " * 20_000 for _ in range(2_000)]
    rows = Dataset.from_dict({"text": texts})
    print("\nONSET", flush=True)
    rows = rows.map(count_pairs, num_proc=2)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for row in rows:
        loss = net(torch.tensor([row["pairs"], row["most"]], dtype=torch.float)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
