"""Two threads take two locks in opposite order; one of them is the training thread."""

import threading
import time

import stage
import torch

weights_lock = threading.Lock()
metrics_lock = threading.Lock()
both_hold_one = threading.Barrier(2)


class Publisher(threading.Thread):
    """Copies metrics and weights to a dashboard."""

    def __init__(self, at_step):
        super().__init__(daemon=True, name="publisher")
        self.at_step, self.step = at_step, 0

    def run(self):
        while True:
            time.sleep(0.005)
            if self.step == self.at_step:
                with metrics_lock:
                    both_hold_one.wait()
                    with weights_lock:
                        print("published")


def pulse():
    while True:
        print("pulse", sum(n for n in range(10_000)), flush=True)
        time.sleep(0.5)


def train():
    opt = stage.arguments()
    torch.set_num_threads(1)
    publisher = Publisher(opt.steps)
    publisher.start()
    if opt.strength != "loud":
        threading.Thread(target=pulse, daemon=True).start()
    model = torch.nn.Linear(700, 700)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for publisher.step in range(1_000_000):
        loss = model(torch.randn(128, 700)).norm()
        sgd.zero_grad()
        loss.backward()
        with weights_lock:
            sgd.step()
            if publisher.step == opt.steps:
                both_hold_one.wait()
                stage.onset()
                with metrics_lock:
                    print(float(loss))


train()
