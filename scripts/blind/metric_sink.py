"""FIELD
source: wandb/wandb#2233 and facebookresearch/fairseq#4619 (the run does not end after a multi-process training since the logger was not finished)
mechanism: the training of all ranks is over and rank 1 has exited; on rank 0 a thread of the metrics sink, not a daemon, still waits for records, so the process does not exit
needs: cpu
ranks: 2
onset: printed
state: hung
cause: hung_at_exit
blame: pump (metric_sink.py)
twin: none
"""
import datetime, json, os, queue, tempfile, threading
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


class Sink:
    def __init__(self, path):
        self.records, self.path = queue.Queue(), path
        self.thread = threading.Thread(target=self.pump, name='sink')
        self.thread.start()

    def pump(self):
        with open(self.path, 'w') as out:
            while (record := self.records.get()) is not None:
                out.write(json.dumps(record) + '\n')
                out.flush()

    def log(self, **record):
        self.records.put(record)

    def finish(self):
        self.records.put(None)
        self.thread.join()


def train(rank, sink, steps):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(100, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 5)))
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    torch.manual_seed(rank)
    for step in range(steps):
        x = torch.randn(192, 100)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if sink and step % 10 == 0:
            sink.log(step=step, loss=loss.item())
        if rank == 0 and step % 100 == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    sink = Sink(os.path.join(tempfile.gettempdir(), f'metric_sink-{os.getppid()}.jsonl')) if rank == 0 else None
    train(rank, sink, steps=450)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print('training done\nONSET', flush=True)


if __name__ == '__main__':
    main()
