"""FIELD
source: skorch-dev/skorch#552 (EpochScoring is slow: each of six metrics runs through the whole validation set again, which is read on the fly)
mechanism: a data set that decodes each sample as it is read, two short training batches per epoch and six EpochScoring callbacks without
    caching: nearly all of the time is prediction over the validation set, sample by sample in the training thread
needs: none
ranks: 1
onset: printed
state: busy, slow
cause: evaluating, serial_loading
blame: none
twin: skorch_fit
"""

import io
import signal

signal.alarm(300)

import numpy
import skorch
import torch
from sklearn import metrics
from skorch.callbacks import Callback, EpochScoring
from skorch.helper import predefined_split

torch.set_num_threads(1)


def packed(row):
    file = io.BytesIO()
    numpy.savez_compressed(file, row=row)
    return file.getvalue()


class Remote(torch.utils.data.Dataset):
    def __init__(self, count):
        made = numpy.random.default_rng(count).normal(size=(count, 4096)).astype(numpy.float32)
        self.blobs, self.labels = [packed(row) for row in made], (made.sum(1) > 0).astype(numpy.int64)

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, index):
        return numpy.load(io.BytesIO(self.blobs[index]))["row"], self.labels[index]


class Begun(Callback):
    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 1:
            print("ONSET", flush=True)


validation = Remote(1200)


def scorer(metric):
    return lambda net, data, _: metric(data.labels, net.predict(data))


scores = [
    EpochScoring(scorer(getattr(metrics, name)), name=name, lower_is_better=False, use_caching=False)
    for name in ("accuracy_score", "precision_score", "recall_score", "f1_score", "balanced_accuracy_score", "jaccard_score")
]
net = skorch.NeuralNetClassifier(
    torch.nn.Sequential(torch.nn.Linear(4096, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)),
    criterion=torch.nn.CrossEntropyLoss,
    classes=[0, 1],
    max_epochs=1_000_000,
    batch_size=64,
    train_split=predefined_split(validation),
    callbacks=[*scores, Begun()],
)
net.fit(Remote(128), y=None)
