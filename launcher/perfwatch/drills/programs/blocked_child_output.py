"""The trainer reads the output of an evaluation script until its end; the script has deadlocked and never closes it."""

import subprocess
import sys
import threading

import stage

EVALUATION = "import stage, threading; gate = threading.Lock(); gate.acquire(); gate.acquire()"


def bleu_score():
    stage.onset()
    folder = __file__.rsplit("/", 1)[0]
    return float(subprocess.check_output([sys.executable, "-c", EVALUATION], cwd=folder))


def run(settings):
    import torch

    torch.set_num_threads(1)
    if settings.strength == "masked":
        ping = threading.Event()
        threading.Thread(
            target=lambda: [print("ping", flush=True) for _ in iter(lambda: ping.wait(0.6), 1)], daemon=True
        ).start()
    seq2seq = torch.nn.Transformer(32, 2, 1, 1, 64)
    noam = torch.optim.Adam(seq2seq.parameters())
    for step in range(1, 10**6):
        noam.zero_grad()
        seq2seq(torch.randn(10, 8, 32), torch.randn(10, 8, 32)).sum().backward()
        noam.step()
        if step % settings.steps == 0:
            print("bleu", bleu_score())


run(stage.arguments())
