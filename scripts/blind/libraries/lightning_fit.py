"""FIELD
source: own (a LightningModule as the documentation shows it, with a validation loop and a CSV logger)
mechanism: Trainer.fit on the CPU with two persistent loader workers; a short validation every 400 batches; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: lightning_workers
"""

import signal
import tempfile

signal.alarm(300)

import lightning
import torch

torch.set_num_threads(1)


class Series(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = torch.randn(96, 16).cumsum(0)
        return x[:-1], x[1:, 0]


class Forecaster(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.GRU(16, 96, 2, batch_first=True)
        self.head = torch.nn.Linear(96, 1)

    def loss(self, batch):
        hidden, _ = self.body(batch[0])
        return torch.nn.functional.mse_loss(self.head(hidden).squeeze(-1), batch[1])

    def training_step(self, batch, number):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        if self.global_step == 40:
            print("\nONSET", flush=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def loader(count):
    return torch.utils.data.DataLoader(Series(count), 32, num_workers=2, persistent_workers=True)


trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=-1,
    val_check_interval=400,
    num_sanity_val_steps=0,
    logger=lightning.pytorch.loggers.CSVLogger(tempfile.mkdtemp()),
    enable_checkpointing=False,
)
trainer.fit(Forecaster(), loader(100_000), loader(640))
