"""FIELD
source: own: elastic training on spot machines whose replacement never comes
mechanism: rank 2 is preempted (exits); the survivors catch the error of the collective and rejoin in the next generation, where init_process_group waits for a third rank that the agent does not start again
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: blocked_rendezvous,dead_worker
blame: none
twin: none
"""
import datetime
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("spot")
FIVE_MIN = datetime.timedelta(minutes=20)


class Preempted(SystemExit):
    pass


class ElasticTrainer:
    def __init__(self, rank, world, port, ckpt):
        self.rank, self.world, self.ckpt = rank, world, ckpt
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=FIVE_MIN)
        torch.manual_seed(7)
        self.model = nn.LSTM(12, 48, batch_first=True, proj_size=12)
        self.opt = torch.optim.RMSprop(self.model.parameters(), 1e-3)
        self.step = 0

    def join(self, generation):
        log.info("rank %d joins generation %d", self.rank, generation)
        if generation and self.rank == 0:
            print("ONSET", flush=True)
        dist.init_process_group("gloo", store=dist.PrefixStore(f"gen{generation}", self.store),
                                rank=self.rank, world_size=self.world, timeout=FIVE_MIN)
        if os.path.exists(self.ckpt):
            saved = torch.load(self.ckpt)
            self.model.load_state_dict(saved["model"])
            self.step = saved["step"]

    def average_gradients(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        for p, g in zip(self.model.parameters(),
                        flat.split([p.numel() for p in self.model.parameters()]), strict=True):
            p.grad.copy_(g.view_as(p))

    def epoch(self):
        while True:
            x = torch.randn(8, 20, 12).cumsum(1)
            time.sleep(0.03)  # ticks of the market feed
            y, _ = self.model(x[:, :-1])
            loss = nn.functional.mse_loss(y, x[:, 1:].tanh())
            self.opt.zero_grad()
            loss.backward()
            self.average_gradients()
            self.opt.step()
            self.step += 1
            if self.rank == 0 and self.step % 40 == 0:
                log.info("step %d loss %.4f", self.step, loss.item())
                torch.save({"model": self.model.state_dict(), "step": self.step}, self.ckpt + ".tmp")
                os.replace(self.ckpt + ".tmp", self.ckpt)
            if self.rank == 2 and self.step == 170:
                log.warning("rank 2: preemption notice")
                raise Preempted(143)

    def run(self):
        for generation in range(10):
            self.join(generation)
            try:
                self.epoch()
            except RuntimeError as e:
                log.warning("rank %d lost a peer: %s", self.rank, str(e)[:80])
                dist.destroy_process_group()


def agent():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=FIVE_MIN)
    with tempfile.TemporaryDirectory() as tmp:
        workers = {r: subprocess.Popen([sys.executable, __file__, str(r), str(store.port), f"{tmp}/last.pt"])
                   for r in range(3)}
        while workers:
            time.sleep(1)
            for r, w in list(workers.items()):
                if w.poll() is not None:
                    log.warning("agent: worker %d exited with %d, 0 restarts left", r, w.returncode)
                    del workers[r]


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if len(sys.argv) > 1:
        ElasticTrainer(int(sys.argv[1]), 3, int(sys.argv[2]), sys.argv[3]).run()
    else:
        agent()
