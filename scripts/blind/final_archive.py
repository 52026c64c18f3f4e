"""FIELD
source: pytorch/torchtitan#1301 and mosaicml/llm-foundry#733 (rank 0 takes minutes to save, the others wait for it)
mechanism: after some training rank 0 writes a checkpoint of many compressed shards for about seven minutes while rank 1 waits in a broadcast for its name; then the training goes on
needs: cpu
ranks: 2
onset: printed
state: busy
cause: checkpointing, waiting_on_work
blame: save_checkpoint (final_archive.py)
twin: none
"""
import datetime, io, lzma, os, shutil, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


def write_shard(tensor, path):
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    with open(path, 'wb') as out:
        out.write(lzma.compress(buffer.getvalue(), preset=6))
        out.flush()
        os.fsync(out.fileno())


def save_checkpoint(state, history, folder, seconds=420):
    os.makedirs(folder, exist_ok=True)
    begun, written = time.monotonic(), 0
    for age, snapshot in enumerate(history):
        for name, tensor in {**state, **snapshot}.items():
            if time.monotonic() - begun > seconds:
                return written
            path = os.path.join(folder, f'{age:04d}-{name}.pt.xz')
            write_shard(tensor, path)
            written += os.path.getsize(path)
            print(f'  {os.path.basename(path)} {os.path.getsize(path)} bytes', flush=True)
    return written


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = os.path.join(tempfile.gettempdir(), f'final_archive-{os.getppid()}')
    torch.manual_seed(rank)
    for phase in range(2):
        for step in range(200):
            x = torch.randn(64, 512)
            loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 0 and rank == 0:
                print(f'phase {phase} step {step} loss {loss.item():.4f}', flush=True)
        name = [None]
        if rank == 0 and phase == 0:
            print('writing the archive\nONSET', flush=True)
            state = model.module.state_dict()
            save_checkpoint(state, [{f'ema{k}': t * 0.999 for k, t in enumerate(state.values())}] * 200, folder)
            name = [folder]
        dist.broadcast_object_list(name, src=0)
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
