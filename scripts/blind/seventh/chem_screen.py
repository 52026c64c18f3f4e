"""FIELD
source: mapillary/OpenSfM#190 (a worker of multiprocessing.Pool that the kernel kills: map waits for ever)
mechanism: active learning: the model ranks molecules, a Pool of two docks the best of them; one large molecule takes too
    much memory and its worker is killed; the Pool starts another worker, but the result never comes
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker, unknown
blame: none
twin: none
"""
import ctypes
import dataclasses
import itertools
import multiprocessing
import os
import signal
import time

import numpy as np
import torch


@dataclasses.dataclass
class Molecule:
    print_: np.ndarray
    atoms: int


def setup_worker():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    os.nice(2)


def dock(molecule):
    """A Monte Carlo search for the best pose; memory grows with the square of the atoms."""
    rng = np.random.default_rng(molecule.atoms)
    if molecule.atoms > 400:
        print("ONSET", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the kernel, when the box is out of memory
    atoms, best = rng.normal(size=(molecule.atoms, 3)), np.inf
    pocket = np.random.default_rng(0).normal(size=(60, 3)) * 2
    for _ in range(12):
        turned = atoms @ np.linalg.qr(rng.normal(size=(3, 3)))[0] + rng.normal(size=3)
        gaps = np.linalg.norm(turned[:, None] - pocket[None], axis=2)
        best = min(best, float((1 / gaps**6 - 1 / gaps**3).clip(-5, 5).mean()))
    return best


def molecule(rng, atoms):
    return Molecule(rng.integers(0, 2, 512).astype(np.float32), int(atoms))


def library(rng):
    return [molecule(rng, atoms) for atoms in rng.integers(12, 60, 4000)]


def controls(rng, second_batch):
    """Known binders that are docked along with each cycle; the second batch begins with a macrocycle."""
    return [molecule(rng, 512 if second_batch else 40), molecule(rng, 33)]


def pick(model, molecules, count):
    prints = torch.from_numpy(np.stack([m.print_ for m in molecules]))
    with torch.inference_mode():
        order = model(prints).squeeze(1).argsort()
    return [molecules[i] for i in order[:count].tolist()]


def fit(model, optimizer, prints, scores, seconds):
    until = time.monotonic() + seconds
    for step in itertools.count(1):
        rows = torch.randint(0, len(scores), (128,))
        loss = torch.nn.functional.huber_loss(model(prints[rows]).squeeze(1), scores[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if time.monotonic() > until:
            return step, loss.item()


def campaign():
    rng = np.random.default_rng(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 384), torch.nn.SiLU(), torch.nn.Linear(384, 384), torch.nn.SiLU(), torch.nn.Linear(384, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    known, scores, born = [], [], time.monotonic()
    with multiprocessing.get_context("fork").Pool(2, initializer=setup_worker) as pool:
        for cycle in itertools.count():
            candidates = pick(model, library(rng), 62) + controls(rng, second_batch=time.monotonic() - born > 17)
            scores += pool.map(dock, candidates, chunksize=4)
            known += candidates
            prints = torch.from_numpy(np.stack([m.print_ for m in known]))
            steps, loss = fit(model, optimizer, prints, torch.tensor(scores), 1.5)
            print(f"cycle {cycle}: best {min(scores):.3f}, {steps} steps, huber {loss:.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    campaign()
