"""FIELD
source: DLR-RM/stable-baselines3#1814 and openai/baselines#640 (deadlock in model.learn with a SubprocVecEnv: one environment process waits
    for its simulator, the parent waits for it without a word)
mechanism: two environments in processes of their own; each drives a simulator thread through a condition; in one of them the simulator
    thread dies of an error of its own, so step() waits for its frame for ever and the parent waits in recv
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks, blocked_child
blame: step (scripts/blind/libraries/sb3_subproc.py), next_frame (scripts/blind/libraries/sb3_subproc.py)
twin: sb3_ppo
"""

import signal
import sys
import threading

signal.alarm(300)

import gymnasium
import numpy
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import SubprocVecEnv

torch.set_num_threads(1)


class Simulator(threading.Thread):
    def __init__(self, frail):
        super().__init__(daemon=True)
        self.changed, self.wanted, self.frame, self.frail = threading.Condition(), 0, 0, frail
        self.start()

    def run(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.wanted > self.frame)
                if self.frail and self.frame == 3000:
                    print("ONSET", flush=True)
                    sys.exit()
                self.frame += 1
                self.changed.notify_all()

    def next_frame(self):
        with self.changed:
            self.wanted += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.frame == self.wanted)
        return self.frame


class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), numpy.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)

    def __init__(self, frail):
        self.simulator = Simulator(frail)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(8, numpy.float32), {}

    def step(self, action):
        frame = self.simulator.next_frame()
        seen = numpy.sin(numpy.arange(8) * frame * 0.01).astype(numpy.float32)
        return seen, float(action.sum()), frame % 200 == 0, False, {}


def make(frail):
    return lambda: Arm(frail)


if __name__ == "__main__":
    environments = SubprocVecEnv([make(False), make(True)], start_method="fork")
    A2C("MlpPolicy", environments, n_steps=32, device="cpu", verbose=1).learn(100_000_000)
