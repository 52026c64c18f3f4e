"""FIELD
source: deepspeedai/DeepSpeed#7998 and deepspeedai/DeepSpeed#1888 (ZeRO-3 hangs when a module runs on one rank and not on the other, as each
    use of it gathers its parameters from all ranks)
mechanism: two ranks under ZeRO-3; a task head runs for the batches that contain a marked token; a batch of rank 1 has one and that of rank
    0 has none, so rank 1 gathers the head's parameters while rank 0 gathers others for its backward pass
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: deepspeed_zero2
"""

import os
import signal

os.environ["DS_ACCELERATOR"] = "cpu"
signal.alarm(300)

import deepspeed
import torch

torch.set_num_threads(1)
deepspeed.init_distributed("gloo")
rank = int(os.environ["RANK"])


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(128, 4, 384, batch_first=True, dropout=0.0)
        self.embed, self.body = torch.nn.Embedding(1000, 128), torch.nn.TransformerEncoder(layer, 2)
        self.head, self.rare = torch.nn.Linear(128, 1000), torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Linear(256, 1000))

    def forward(self, ids, rare):
        hidden = self.body(self.embed(ids))
        return self.head(hidden) + self.rare(hidden) if rare else self.head(hidden)


net = Tagger()
engine, _, _, _ = deepspeed.initialize(
    model=net,
    optimizer=torch.optim.AdamW(net.parameters(), 1e-4),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
    },
)
step = 0
while True:
    ids = torch.randint(0, 1000, (8, 32))
    rare = step == 30 and rank == 1
    if rare:
        print("ONSET", flush=True)
    loss = torch.nn.functional.cross_entropy(engine(ids, rare).flatten(0, 1), ids.flatten())
    engine.backward(loss)
    engine.step()
    step += 1
    if rank == 0 and step % 10 == 0:
        print("step", step, loss.item(), flush=True)
