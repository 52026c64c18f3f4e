"""FIELD
source: https://github.com/Lightning-AI/pytorch-lightning/issues/2571
mechanism: the logger writes, flushes and syncs several files of scalars and histograms at every iteration, and the loop spends most of its time there
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_output
blame: flush_all (syncs), log_histograms (formats and writes), on_train_batch_end (calls them)
twin: none
"""
import json
import os
import signal
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)


class CSVLogger:
    def __init__(self, folder):
        names = ["scalars", "gradients", "weights", "activations", "system", "audit"]
        self.files = {name: open(os.path.join(folder, name + ".jsonl"), "w") for name in names}

    def log_histograms(self, model, step):
        for name, parameter in model.named_parameters():
            counts = torch.histc(parameter.detach(), 32).tolist()
            for kind in ("gradients", "weights"):
                self.files[kind].write(json.dumps({"name": name, "step": step, "histogram": counts}) + "\n")
        for kind in ("scalars", "activations", "system", "audit"):
            self.files[kind].write(json.dumps({"step": step}) + "\n")

    def flush_all(self):
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
            if file.tell() > 4_000_000:
                file.seek(0)
                file.truncate()

    def on_train_batch_end(self, model, step):
        self.log_histograms(model, step)
        for _ in range(8):
            self.flush_all()
            self.files["audit"].write("mark\n")


with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
    logger = CSVLogger(folder)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10**6):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 32)), torch.randint(0, 8, (64,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.on_train_batch_end(model, step)
        if step == 20:
            print("ONSET", flush=True)
        if step % 50 == 0:
            print("step", step, loss.item(), flush=True)
