"""FIELD
source: https://github.com/tensorflow/tensorboard/issues/6167 (EventFileWriter hangs on an exception in the background thread)
mechanism: the writer thread of the event log dies of an OSError (file size limit), nobody empties its bounded queue any more, and the training thread blocks in Queue.put for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: add (event_log.py)
twin: none
"""
import os
import pickle
import queue
import resource
import tempfile
import threading

import torch
import torch.nn as nn


class EventLog:
    def __init__(self, path, max_queue=10):
        self._file = open(path, "ab")
        self._queue = queue.Queue(max_queue)
        self._thread = threading.Thread(target=self._drain, daemon=True, name="event-log")
        self._thread.start()

    def _drain(self):
        while True:
            event = self._queue.get()
            pickle.dump(event, self._file)
            self._file.flush()
            self._queue.task_done()

    def add(self, tag, value, step):
        self._queue.put((tag, step, value))

    def close(self):
        self._queue.join()
        self._file.close()


def main():
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (24 << 20, resource.RLIM_INFINITY))     # site policy for scratch
    log = EventLog(os.path.join(tempfile.mkdtemp(prefix="runs_"), "events.0"))
    model = nn.Sequential(nn.Embedding(5000, 256), nn.Flatten(), nn.Linear(8 * 256, 512), nn.ReLU(), nn.Linear(512, 5000))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4000):
        ids = torch.randint(0, 5000, (32, 9))
        loss = nn.functional.cross_entropy(model(ids[:, :8]), ids[:, 8])
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.add("train/loss", loss.item(), step)
        if step % 500 == 499:
            print("step", step, loss.item(), flush=True)
        if step == 500:
            print("ONSET", flush=True)
        if step >= 500 and step % 10 == 0:
            for name, p in model.named_parameters():
                log.add("hist/" + name, p.detach().numpy().copy(), step)
    log.close()


if __name__ == "__main__":
    main()
