"""FIELD
source: Lightning-AI/pytorch-lightning#19604 and Lightning-AI/pytorch-lightning#19106 (deadlock: a metric is logged with sync_dist on one rank only)
mechanism: two ranks under DDP; when the loss has a new minimum, the module of rank 0 alone logs it with sync_dist=True and waits for the
    reduction, while rank 1 waits in the gradient exchange of the next step
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 0, on_train_batch_end (scripts/blind/libraries/lightning_rank_zero_log.py)
twin: lightning_fit
"""

import signal

signal.alarm(300)

import lightning
import torch

torch.set_num_threads(1)


class Scores(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, number):
        x = torch.randn(256)
        return x, x[:10].argmax()


class Ranker(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))

    def training_step(self, batch, number):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs, batch, number):
        if self.global_rank == 0 and number % 25 == 0:
            print("batch", number, outputs["loss"].item(), flush=True)
        if self.global_rank == 0 and number == 300:
            print("\nONSET", flush=True)
            self.log("best", outputs["loss"], on_step=True, on_epoch=False, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-2)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=-1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Ranker(), torch.utils.data.DataLoader(Scores(), 32))
