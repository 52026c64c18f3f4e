"""Training has ended; a thread that is not a daemon waits for work, and the interpreter waits for the thread."""

import queue
import threading
import time

import stage
import torch


class MetricsWriter(threading.Thread):
    def __init__(self):
        super().__init__(name="metrics-writer")
        self.inbox = queue.Queue()

    def run(self):
        while True:
            self.inbox.get()


def memory_reporter():
    while True:
        print("rss 300 MiB", flush=True)
        time.sleep(0.5)


def main():
    options = stage.arguments()
    torch.set_num_threads(1)
    writer = MetricsWriter()
    writer.start()
    if options.strength == "masked":
        threading.Thread(target=memory_reporter).start()  # not a daemon either, and it is even busy
    model = torch.nn.Linear(512, 512)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        loss = model(torch.randn(256, 512)).pow(2).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        writer.inbox.put(loss.item())
    print("done")
    stage.onset()


main()
