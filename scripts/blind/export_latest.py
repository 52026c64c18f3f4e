"""FIELD
source: deepspeedai/DeepSpeed#2993 and PR #801 (save_checkpoint, a collective, under "if rank == 0"); here with torch.distributed.checkpoint
mechanism: rank 0 alone calls torch.distributed.checkpoint.save and waits for the plans of the other ranks, which poll for the file that rank 0 writes after the save
needs: cpu
ranks: 3
onset: printed
state: hung
cause: stalled_collective, waiting_for_file
blame: none
twin: none
"""
import datetime, os, pathlib, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
import torch.distributed.checkpoint as dcp

torch.set_num_threads(1)


def save(model, opt, root, step):
    target, marker = root / f'step-{step}', root / 'latest'
    if dist.get_rank() == 0:
        print(f'exporting {target}\nONSET', flush=True)
        dcp.save({'model': model.state_dict(), 'optim': opt.state_dict()}, checkpoint_id=str(target))
        marker.write_text(target.name)
    else:
        while not (marker.exists() and marker.read_text() == target.name):
            time.sleep(0.5)


def average_gradients(model, world):
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for work in works:
        work.wait()
    for p in model.parameters():
        p.grad.div_(world)


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    root = pathlib.Path(tempfile.gettempdir()) / f'export_latest-{os.getppid()}'
    if rank == 0:
        root.mkdir(exist_ok=True)
    dist.barrier()
    torch.manual_seed(0)
    model = nn.GRU(48, 96, num_layers=2, batch_first=True)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    torch.manual_seed(10 + rank)
    for step in range(1, 100001):
        x = torch.randn(16, 24, 48).cumsum(1) / 5
        out, _ = model(x[:, :-1])
        loss = ((out[..., :48] - x[:, 1:]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        average_gradients(model, world)
        opt.step()
        if step % 50 == 0 and rank == 0:
            print(f'step {step}: {loss.item():.4f}', flush=True)
        if step % 250 == 0:
            save(model, opt, root, step)


main()
