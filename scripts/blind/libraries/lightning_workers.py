"""FIELD
source: Lightning-AI/pytorch-lightning#10389 (very slow between epochs: the loader's workers are started anew for each epoch of few batches)
mechanism: Trainer.fit with epochs of twelve batches; both loaders start two workers for each epoch, and the data set reads its index in
    the first access of every worker
needs: none
ranks: 1
onset: printed
state: slow
cause: worker_respawn
blame: none
twin: lightning_fit
"""

import json
import signal
import tempfile

signal.alarm(300)

import lightning
import torch

torch.set_num_threads(1)
index = tempfile.NamedTemporaryFile("w", suffix=".json")
json.dump([{"name": f"clip{n}", "label": n % 5} for n in range(200_000)], index)
index.flush()


class Clips(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count, self.entries = count, None

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if self.entries is None:
            with open(index.name) as file:
                self.entries = json.load(file)
        return torch.randn(128), self.entries[number]["label"]


class Tagger(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 5))

    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def on_train_epoch_end(self):
        if self.current_epoch == 4:
            print("\nONSET", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-2)


def loader(count):
    return torch.utils.data.DataLoader(Clips(count), 16, num_workers=2)


trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Tagger(), loader(192), loader(32))
