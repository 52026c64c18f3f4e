"""FIELD
source: https://github.com/pytorch/pytorch/issues/48666 and https://github.com/pytorch/translate/pull/285 (at exit Python joins the feeder thread of a multiprocessing.Queue whose items nobody takes)
mechanism: the process that stores histograms ends when it has its fill; training goes on putting more of them, and after the last step the interpreter joins the queue's feeder thread, which is blocked on the full pipe
needs: cpu
ranks: 1
onset: printed
state: hung
cause: hung_at_exit, blocked_pipe
blame: none
twin: none
"""
import multiprocessing as mp, os, tempfile, time
import numpy as np
import torch, torch.nn as nn

torch.set_num_threads(1)

def store_histograms(events, path, keep):
    with open(path, 'wb') as out:
        for _ in range(keep):
            tag, step, values = events.get()
            np.save(out, np.histogram(values, bins=64)[0])

class HistogramLog:
    def __init__(self, folder, keep=400):
        ctx = mp.get_context('fork')
        self.events = ctx.Queue()
        self.writer = ctx.Process(target=store_histograms, args=(self.events, os.path.join(folder, 'hist.npy'), keep), daemon=True)
        self.writer.start()

    def add(self, model, step):
        for name, p in model.named_parameters():
            if p.grad is not None:
                self.events.put((name, step, p.grad.flatten()[:4096].clone().numpy()))

def main():
    with tempfile.TemporaryDirectory() as folder:
        log = HistogramLog(folder)
        model = nn.Sequential(nn.Linear(200, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 10))
        opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        until = time.time() + 12
        step = 0
        while time.time() < until:
            x = torch.randn(128, 200)
            loss = nn.functional.mse_loss(model(x), x[:, :10].sin())
            opt.zero_grad(); loss.backward(); opt.step()
            if step % 50 == 0:
                log.add(model, step)
                print(f'step {step} loss {loss.item():.4f}', flush=True)
            step += 1
        torch.save(model.state_dict(), os.path.join(folder, 'final.pt'))
        log.add(model, step)
        for tail in range(200):                    # the last state in detail
            log.add(model, step + tail)
    print(f'finished after {step} steps', flush=True)
    print('ONSET', flush=True)

if __name__ == '__main__':
    main()
