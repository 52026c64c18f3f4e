"""FIELD
source: own (PPO of Stable-Baselines3 on an environment of one's own, four copies in one process)
mechanism: PPO collects rollouts of a small cart in a DummyVecEnv and updates its policy over and over; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy, busy
cause: cpu_training, balanced, evaluating
blame: none
twin: sb3_idle_policy
"""

import signal

signal.alarm(300)

import gymnasium
import numpy
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

torch.set_num_threads(1)


class Cart(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (4,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.normal(0, 0.05, 4), 0
        return self.state.astype(numpy.float32), {}

    def step(self, action):
        x, v, angle, spin = self.state
        force = 1.0 if action else -1.0
        self.state = numpy.clip([x + 0.02 * v, v + 0.02 * force, angle + 0.02 * spin, spin + angle * 0.2 - 0.03 * force], -10, 10)
        self.steps += 1
        return self.state.astype(numpy.float32), 1.0, bool(abs(angle) > 0.4), self.steps >= 500, {}


class Begun(BaseCallback):
    rollouts = 0

    def _on_rollout_end(self):
        self.rollouts += 1
        if self.rollouts == 2:
            print("ONSET", flush=True)

    def _on_step(self):
        return True


model = PPO("MlpPolicy", DummyVecEnv([Cart] * 4), n_steps=256, batch_size=64, n_epochs=10, device="cpu", verbose=1)
model.learn(100_000_000, callback=Begun())
