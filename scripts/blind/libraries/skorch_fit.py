"""FIELD
source: own (skorch's NeuralNetClassifier as in its README)
mechanism: NeuralNetClassifier.fit on a made-up table, with its print log after every epoch; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: skorch_scoring
"""

import signal

signal.alarm(300)

import numpy
import skorch
import torch
from skorch.callbacks import Callback

torch.set_num_threads(1)
rows = numpy.random.default_rng(0).normal(size=(4000, 64)).astype(numpy.float32)
labels = (rows[:, :8].sum(1) > 0).astype(numpy.int64)


class Begun(Callback):
    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 3:
            print("ONSET", flush=True)


module = torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
    torch.nn.Linear(512, 2),
)
net = skorch.NeuralNetClassifier(
    module, criterion=torch.nn.CrossEntropyLoss, max_epochs=1_000_000, lr=0.05, batch_size=64, callbacks=[Begun()]
)
net.fit(rows, labels)
