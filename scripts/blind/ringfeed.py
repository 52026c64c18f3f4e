"""FIELD
source: own (stream memory operations as a hand-over between a host thread and the card)
mechanism: the training stream waits with cuStreamWaitValue32 for the ticket that a host thread writes into pinned memory; the host thread has ended with its recording, so the ticket never comes
needs: gpu
ranks: 1
onset: printed
state: hung
cause: stuck_kernel
blame: train (ringfeed.py)
twin: none
"""
import ctypes, os, signal, threading, time
import torch, torch.nn as nn

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda:0')
slots, rows, width = 4, *((32, 64) if cpu else (4096, 4096))
pin = (lambda t: t) if cpu else (lambda t: t.pin_memory())
ring = pin(torch.zeros(slots, rows, width, dtype=torch.bfloat16))
tickets = pin(torch.zeros(slots, dtype=torch.int32))
tickets_view = tickets.numpy()
room = threading.Semaphore(slots)


def feed(seconds):
    """Plays the recording into the ring: slot by slot, each with the number of its ticket."""
    start, ticket = time.time(), 0
    scratch = torch.randn(rows + 1024, width).to(torch.bfloat16)
    while time.time() - start < seconds:
        room.acquire()
        ring[ticket % slots].copy_(scratch[ticket % 1024:ticket % 1024 + rows])
        tickets_view[ticket % slots] = ticket + 1
        ticket += 1
    print(f'recording at its end after {ticket} blocks\nONSET', flush=True)


def await_ticket(stream, slot, ticket):
    if cpu:
        while tickets_view[slot] < ticket: time.sleep(0.001)
        return
    rc = driver.cuStreamWaitValue32_v2(ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(tickets.data_ptr() + 4 * slot),
                                       ctypes.c_uint32(ticket), ctypes.c_uint(0))
    if rc: raise RuntimeError(f'cuStreamWaitValue32: {rc}')


def train(steps):
    net = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(dev, torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    stream = None if cpu else torch.cuda.Stream()
    if not cpu:
        torch.cuda.synchronize()
        torch.cuda.set_stream(stream)
    for step in range(steps):
        slot = step % slots
        await_ticket(stream, slot, step + 1)
        x = ring[slot].to(dev, non_blocking=True)
        if cpu: x = x.clone()
        loss = (net(x) - x).float().square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        value = loss.item()
        room.release()
        if step % 100 == 0: print(f'step {step} loss {value:.4f}', flush=True)


driver = None if cpu else ctypes.CDLL('libcuda.so.1')
threading.Thread(target=feed, args=(9,), name='feed', daemon=True).start()
train(10**9)
