"""FIELD
source: hill-a/stable-baselines#876 and DLR-RM/rl-baselines3-zoo#296 (the evaluation runs for ever: a deterministic policy that does nothing
    never ends its episode, and evaluate_policy has no limit of steps)
mechanism: EvalCallback evaluates the policy in an environment without a time limit whose episode only ends when the goal is reached; the
    policy stands still, and the while loop of evaluate_policy goes on stepping
needs: none
ranks: 1
onset: printed
state: busy, hung
cause: evaluating, endless_python
blame: none
twin: sb3_ppo
"""

import signal

signal.alarm(300)

import gymnasium
import numpy
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor

torch.set_num_threads(1)


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-100, 100, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, patient=False):
        self.patient = patient

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        if self.patient:
            print("ONSET", flush=True)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if not self.patient:
            self.place += int(action) - 1
        return (
            numpy.array([self.place, 1.0], numpy.float32),
            -abs(int(action) - 1) * 0.1,
            abs(self.place) >= 20,
            not self.patient and self.steps >= 200,
            {},
        )


model = PPO("MlpPolicy", Corridor(), n_steps=512, batch_size=64, n_epochs=4, device="cpu", verbose=1)
model.learn(100_000_000, callback=EvalCallback(Monitor(Corridor(patient=True)), n_eval_episodes=3, eval_freq=2000))
