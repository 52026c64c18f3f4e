"""FIELD
source: deepspeedai/DeepSpeed#797 and deepspeedai/DeepSpeed#2993 (save_checkpoint hangs when only the main process calls it)
mechanism: two ranks under ZeRO-2; every so often rank 0 alone saves a checkpoint, whose validation of the tag reduces over all ranks, while
    rank 1 is in the gradient exchange of its next step
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 0
twin: deepspeed_zero2
"""

import os
import signal
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"
signal.alarm(300)

import deepspeed
import torch

torch.set_num_threads(1)
deepspeed.init_distributed("gloo")
layer = torch.nn.TransformerEncoderLayer(128, 4, 384, batch_first=True, dropout=0.0)
net = torch.nn.Sequential(torch.nn.Embedding(1000, 128), torch.nn.TransformerEncoder(layer, 3), torch.nn.Linear(128, 1000))
engine, _, _, _ = deepspeed.initialize(
    model=net,
    optimizer=torch.optim.AdamW(net.parameters(), 1e-4),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
    },
)
step = 0
while True:
    ids = torch.randint(0, 1000, (8, 48))
    loss = torch.nn.functional.cross_entropy(engine(ids).flatten(0, 1), ids.flatten())
    engine.backward(loss)
    engine.step()
    step += 1
    if engine.global_rank == 0 and step % 10 == 0:
        print("step", step, loss.item(), flush=True)
    if engine.global_rank == 0 and step == 40:
        print("ONSET", flush=True)
        engine.save_checkpoint(tempfile.mkdtemp(), tag="step40")
