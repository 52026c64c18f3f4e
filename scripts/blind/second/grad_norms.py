"""FIELD
source: https://github.com/ROCm/rccl/pull/1600 and https://github.com/pytorch/pytorch/issues/18949 (gradient hooks of a GPU run in autograd's thread for that device, not in the thread that called backward)
mechanism: the training thread holds a re-entrant lock around backward; the gradient hook takes the same lock, but in autograd's device thread, so it waits for the training thread, which waits for backward
needs: gpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: observe (grad_norms.py)
twin: none
"""
import os, threading, time
import torch, torch.nn as nn

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
WIDTH, BATCH, DEPTH = (96, 32, 4) if cpu else (4096, 4096, 12)

class GradMeter:
    def __init__(self, model):
        self.lock = threading.Lock() if cpu else threading.RLock()     # on the CPU the hooks run in the caller's own thread
        self.norms, self.steps = {}, 0
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: self.observe(name, p))

    def observe(self, name, p):
        with self.lock:
            self.norms[name] = p.grad.detach().norm()

    def snapshot(self):
        with self.lock:
            return self.steps, {k: v.item() for k, v in self.norms.items()}

    def report(self, every):
        while True:
            time.sleep(every)
            steps, norms = self.snapshot()
            if norms:
                top = max(norms, key=norms.get)
                print(f'grad norms after {steps} steps: {top} {norms[top]:.3f}', flush=True)

def main():
    model = nn.Sequential(*[m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]).to(dev)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    meter = GradMeter(model)
    threading.Thread(target=meter.report, args=(3,), daemon=True, name='grad-report').start()
    begun, consistent = time.time(), False
    for step in range(10**9):
        x = torch.randn(BATCH, WIDTH, device=dev)
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            loss = (model(x) - x).float().abs().mean()
        opt.zero_grad()
        if not consistent and time.time() - begun > 10:
            consistent = True                     # from here on a report shows the norms of one and the same step
            print('ONSET', flush=True)
        if consistent:
            with meter.lock:
                loss.backward()
                meter.steps = step + 1
        else:
            loss.backward()
            meter.steps = step + 1
        opt.step()
        if step % 50 == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)

if __name__ == '__main__':
    main()
