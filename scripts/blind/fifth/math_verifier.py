"""FIELD
source: own: RL with verifiable rewards; the answers of a batch are checked in a separate process, as it may time out
mechanism: every few steps the trainer hands candidate answers to a verifier, a child that compares them with sympy;
    one batch of hard integrals takes the child minutes of computation, the trainer sits in communicate ()
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, evaluating, computing_on_host
blame: none
twin: none
"""
import ctypes
import json
import random
import signal
import subprocess
import sys
import threading
import time


def verify():
    """Child: read problems from stdin, answer with a list of booleans."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    import sympy

    x = sympy.symbols("x")
    verdicts = []
    for item in json.load(sys.stdin):
        gold, answer = sympy.sympify(item["gold"]), sympy.sympify(item["answer"])
        if item["hard"]:
            gold = sympy.expand(gold ** item["power"])
            answer = sympy.factor(sympy.expand(answer ** item["power"] * (x**2 + 3 * x + 1)))
            answer = sympy.cancel(answer / (x**2 + 3 * x + 1))
        verdicts.append(sympy.simplify(sympy.diff(gold - answer, x)) == 0)
        sympy.core.cache.clear_cache()
    json.dump([bool(v) for v in verdicts], sys.stdout)


def problems(n, hard):
    rng = random.Random(n)
    for _ in range(n):
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        gold = f"({a}*x**3 + {b}*x + {c})*(x**4 - {b}*x**2 + {a})"
        answer = f"({a}*x**3 + {b}*x + {c})*(x**4 - {b}*x**2 + {a})" if rng.random() < 0.6 else f"{a}*x**7 + {c}"
        yield {"gold": gold, "answer": answer, "hard": hard, "power": rng.randint(4, 7)}


class VerifierPool:
    def grade(self, items):
        child = subprocess.Popen(
            [sys.executable, __file__, "verify"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        out, _ = child.communicate(json.dumps(items))
        if child.returncode:
            raise RuntimeError(f"verifier ended with {child.returncode}")
        return json.loads(out)


class Progress(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.phase = "train"
        self.seconds = {}

    def run(self):
        while True:
            time.sleep(0.5)
            self.seconds[self.phase] = self.seconds.get(self.phase, 0) + 0.5


def main():
    import torch
    from torch import nn

    signal.alarm(300)
    torch.set_num_threads(1)
    policy = nn.LSTM(32, 96, batch_first=True)
    head = nn.Linear(96, 64)
    params = [*policy.parameters(), *head.parameters()]
    opt = torch.optim.AdamW(params, 5e-4)
    progress, verifier = Progress(), VerifierPool()
    progress.start()
    rewards, began, step, rounds = torch.ones(16), time.time(), 0, 0
    while rounds < 50:
        logits = head(policy(torch.randn(16, 24, 32))[0])
        tokens = torch.distributions.Categorical(logits=logits)
        chosen = tokens.sample()
        loss = -(tokens.log_prob(chosen).mean(1) * (rewards - rewards.mean() + 0.01)).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        step += 1
        if step % 60 == 0:
            print(f"step {step} pg-loss {loss.item():+.4f} reward {rewards.mean():.2f} {progress.seconds}", flush=True)
        if time.time() - began > (3 if rounds == 0 else 9):
            progress.phase = "verify"
            if rounds == 1:
                print("ONSET", flush=True)
            items = list(problems(16, False) if rounds == 0 else problems(4000, True))
            rewards = torch.tensor(verifier.grade(items)[:16]).float()
            progress.phase, rounds = "train", rounds + 1


if __name__ == "__main__":
    verify() if sys.argv[1:] == ["verify"] else main()
