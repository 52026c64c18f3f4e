"""FIELD
source: own
mechanism: the card is paced to the sensors' clock with a spinning kernel; the second sensor's time stamps are milliseconds instead of seconds, so the next pause is a kernel of hours and item() spins behind it
needs: gpu
ranks: 1
onset: printed
state: hung
cause: stuck_kernel
blame: pace (paced.py), online_step (paced.py)
twin: none
"""
import os, signal, time
import torch, torch.nn as nn

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
width = 64 if cpu else 2048
cycles_per_second = 1.7e9


def stamps():
    """Sensor a for the first ten seconds or so, then sensor b."""
    t = 0.0
    for _ in range(500):
        t += 0.02
        yield t
    while True:
        t += 0.02
        yield t * 1000


def pace(gap):
    """Keep the card from running ahead of the sensor."""
    if gap > 1: print('ONSET', flush=True)
    if cpu: time.sleep(gap)
    else: torch.cuda._sleep(int(gap * cycles_per_second))


def online_step(net, opt, state):
    x = torch.randn(1024, width, device=dev)
    guess = net(torch.cat([x, state], 1))
    loss = (guess - x.roll(1, 1)).square().mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return guess.detach(), loss.item()


net = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width)).to(dev)
opt = torch.optim.Adam(net.parameters(), lr=1e-4)
state, last = torch.zeros(1024, width, device=dev), 0.0
for n, stamp in enumerate(stamps()):
    pace(stamp - last)
    last = stamp
    state, loss = online_step(net, opt, state)
    if n % 50 == 0: print(f'sample {n} at {stamp:.2f} loss {loss:.4f}', flush=True)
