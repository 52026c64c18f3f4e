"""A thread died between acquire and release; the trainer waits for the lock that nobody will ever give back."""

import threading
import time

import stage
import torch


class CheckpointSlot:
    def __init__(self):
        self.free = threading.Semaphore(1)

    def upload(self, state):
        self.free.acquire()
        if state is None:
            raise ValueError("nothing to upload")
        time.sleep(0.01)
        self.free.release()


def heartbeat(path="/dev/null"):
    with open(path, "a", buffering=1) as log:
        while True:
            log.write("ok\n")
            time.sleep(1)


def main(config):
    torch.set_num_threads(1)
    if config.strength == "masked":
        threading.Thread(target=heartbeat, daemon=True).start()
    slot = CheckpointSlot()
    policy = torch.nn.Linear(400, 400)
    adam = torch.optim.Adam(policy.parameters())
    for update in range(10**6):
        adam.zero_grad()
        policy(torch.randn(200, 400)).square().mean().backward()
        adam.step()
        state = None if update == config.steps else policy.state_dict()
        if update == config.steps:
            stage.onset()
        saver = threading.Thread(target=slot.upload, args=(state,))
        saver.start()
        saver.join()
        with slot.free:
            pass  # wait until the slot is free again


main(stage.arguments())
