"""FIELD
source: own
mechanism: after some epochs the model is calibrated for int8: histogram observers collect the activations of many batches under no_grad, without an optimizer step; it takes minutes and ends
needs: cpu
ranks: 1
onset: printed
state: busy
cause: evaluating, computing_on_host
blame: calibrate (ptq_calibrate.py)
twin: none
"""
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Observer:
    def __init__(self, bins=2048):
        self.bins = bins
        self.hist = torch.zeros(bins)
        self.limit = None

    def __call__(self, module, inputs, output):
        values = output.detach().abs().flatten()
        if self.limit is None:
            self.limit = float(values.max()) * 1.5
        self.hist += torch.histc(values.clamp(max=self.limit), self.bins, 0, self.limit)

    def scale(self):
        centres = (torch.arange(self.bins) + 0.5) * self.limit / self.bins
        best, best_err = None, float("inf")
        for cut in torch.linspace(0.2, 1.0, 60):
            step = self.limit * cut / 127
            err = (self.hist * (centres - (centres / step).round().clamp(max=127) * step) ** 2).sum().item()
            if err < best_err:
                best, best_err = float(step), err
        return best


def block(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


def calibrate(net, batches):
    watched = [m for m in net.modules() if isinstance(m, nn.ReLU)]
    observers = [Observer() for _ in watched]
    hooks = [m.register_forward_hook(o) for m, o in zip(watched, observers)]
    net.eval()
    begun = time.time()
    with torch.no_grad():
        for n in range(batches):
            net(torch.randn(32, 3, 64, 64))
            if time.time() - begun > 420:
                break
            if n % 100 == 0:
                print(f"calibration {n}/{batches}", flush=True)
    for hook in hooks:
        hook.remove()
    net.train()
    return [o.scale() for o in observers]


def main():
    net = nn.Sequential(block(3, 24, 1), block(24, 32, 2), block(32, 48, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def epochs(seconds):
        started, step = time.time(), 0
        while time.time() - started < seconds:
            x = torch.randn(16, 3, 64, 64)
            loss = nn.functional.cross_entropy(net(x), torch.randint(0, 10, (16,)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)

    epochs(10)
    print("ONSET", flush=True)
    scales = calibrate(net, 5000)
    print("scales", [round(s, 5) for s in scales], flush=True)
    epochs(20)


if __name__ == "__main__":
    main()
