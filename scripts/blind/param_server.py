"""FIELD
source: own, after the tutorial "batch RPC processing" of pytorch (async_execution, a future per update); shutdown as in pytorch/pytorch#70278
mechanism: the server answers an update when the gradients of all trainers are there; trainer 2 has run out of data and is in rpc.shutdown, so trainer 1 waits for its answer and all three wait
needs: cpu
ranks: 3
onset: printed
state: hung
cause: unknown, blocked_network, stalled_collective
blame: none
twin: none
"""
import os, threading
import torch, torch.distributed.rpc as rpc
from torch import nn

torch.set_num_threads(1)
TRAINERS = 2


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))


class ParameterServer:
    def __init__(self):
        self.model, self.lock, self.pending = make_model(), threading.Lock(), 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.answer = torch.futures.Future()
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)

    @staticmethod
    @rpc.functions.async_execution
    def update(server, grads):
        self = server.local_value()
        with self.lock:
            for p, g in zip(self.model.parameters(), grads):
                p.grad += g / TRAINERS
            self.pending += 1
            answer = self.answer
            if self.pending == TRAINERS:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self.pending, self.answer = 0, torch.futures.Future()
                answer.set_result([p.detach().clone() for p in self.model.parameters()])
        return answer


class Trainer:
    def __init__(self, server):
        self.server, self.model = server, make_model()
        self.name = rpc.get_worker_info().name

    def train(self, batches):
        for k in range(batches):
            x = torch.randn(96, 64)
            loss = nn.functional.cross_entropy(self.model(x), x[:, :8].argmax(1))
            self.model.zero_grad()
            loss.backward()
            fresh = rpc.rpc_sync(self.server.owner(), ParameterServer.update, args=(self.server, [p.grad for p in self.model.parameters()]), timeout=0)
            with torch.no_grad():
                for p, value in zip(self.model.parameters(), fresh):
                    p.copy_(value)
            if k % 100 == 0:
                print(f'{self.name} batch {k} loss {loss.item():.4f}', flush=True)
        print(f'{self.name}: {batches} batches done\nONSET', flush=True)


def run_trainer(server, batches):
    Trainer(server).train(batches)


def main():
    rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=2400, _transports=['uv'], _channels=['basic'])
    rpc.init_rpc('server' if rank == 0 else f'trainer{rank}', rank=rank, world_size=world, rpc_backend_options=options)
    if rank == 0:
        server = rpc.RRef(ParameterServer())
        files = {1: 900, 2: 700}
        jobs = [rpc.rpc_async(f'trainer{r}', run_trainer, args=(server, n), timeout=0) for r, n in files.items()]
        torch.futures.wait_all(jobs)
    rpc.shutdown(timeout=0)


if __name__ == '__main__':
    main()
