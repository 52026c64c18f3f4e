"""FIELD
source: scikit-learn/scikit-learn#5115 and scikit-learn/scikit-learn#8949 (GridSearchCV with n_jobs freezes for ever: the forked workers wait
    for threads of an OpenMP pool that does not exist in them)
mechanism: a skorch net is fitted once with two OpenMP threads, then GridSearchCV runs with joblib's multiprocessing backend; its forked
    workers wait in libgomp for a pool of threads that only the parent has, and the parent waits for their results
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks, blocked_child, dead_worker, unknown
blame: none
twin: skorch_fit
"""

import signal

signal.alarm(300)

import joblib
import numpy
import skorch
import torch
from sklearn.model_selection import GridSearchCV

torch.set_num_threads(2)
rows = numpy.random.default_rng(0).normal(size=(3000, 256)).astype(numpy.float32)
labels = (rows[:, :8].sum(1) > 0).astype(numpy.int64)


def net(epochs):
    module = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 2))
    return skorch.NeuralNetClassifier(
        module, criterion=torch.nn.CrossEntropyLoss, max_epochs=epochs, lr=0.05, batch_size=256, train_split=None
    )


net(12).fit(rows, labels)
print("ONSET", flush=True)
search = GridSearchCV(net(200), {"lr": [0.01, 0.02, 0.05, 0.1]}, cv=3, n_jobs=2, refit=False, verbose=2)
with joblib.parallel_backend("multiprocessing"):
    search.fit(rows, labels)
print("best", search.best_params_, flush=True)
