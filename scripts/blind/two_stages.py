"""FIELD
source: own (a pipeline of two stages with eight micro-batches, one forward one backward; the bubbles are those of the schedule)
mechanism: each stage waits for activations or gradients of the other several times per step, as the schedule has it; both stages have the same work, and nothing is wrong
needs: cpu
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import datetime, time
import torch, torch.nn as nn, torch.distributed as dist

torch.set_num_threads(1)
MICRO, AHEAD, SIZE, DIM, RUN = 8, 4, 192, 448, 700


def block():
    return nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))


def inputs_of(step):
    return torch.randn(MICRO, SIZE, 64, generator=torch.Generator().manual_seed(step))


class First:
    def __init__(self):
        self.body = nn.Sequential(nn.Linear(64, DIM), block())

    def step(self, step):
        inputs, alive, sends = inputs_of(step), {}, []
        grads = torch.empty(MICRO, SIZE, DIM)
        arriving = [dist.irecv(grads[k], 1, tag=MICRO + k) for k in range(MICRO)]
        for k in range(MICRO + AHEAD):
            if k < MICRO:
                alive[k] = self.body(inputs[k])
                sends.append(dist.isend(alive[k].detach(), 1, tag=k))
            if k >= AHEAD:
                arriving[k - AHEAD].wait()
                alive.pop(k - AHEAD).backward(grads[k - AHEAD])
        for work in sends:
            work.wait()


class Second:
    def __init__(self):
        self.body = nn.Sequential(block(), nn.Linear(DIM, 64))

    def step(self, step):
        targets, total, sends = inputs_of(step).roll(1, 2), 0.0, []
        acts = torch.empty(MICRO, SIZE, DIM)
        arriving = [dist.irecv(acts[k], 0, tag=k) for k in range(MICRO)]
        for k in range(MICRO):
            arriving[k].wait()
            x = acts[k].clone().requires_grad_()
            loss = nn.functional.mse_loss(self.body(x), targets[k]) / MICRO
            loss.backward()
            sends.append((dist.isend(x.grad, 0, tag=MICRO + k), x))
            total += loss.item()
        for work, _ in sends:
            work.wait()
        return total


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = First() if rank == 0 else Second()
    opt = torch.optim.Adam(stage.body.parameters(), lr=1e-3)
    begun = time.monotonic()
    for step in range(1, 1000000):
        loss = stage.step(step)
        opt.step()
        opt.zero_grad()
        if rank == 1 and step == 20:
            print('ONSET', flush=True)
        if rank == 1 and step % 5 == 0:
            print(f'step {step} loss {loss:.4f}', flush=True)
        if step % 5 == 0:
            over = torch.tensor(float(time.monotonic() - begun > RUN))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
