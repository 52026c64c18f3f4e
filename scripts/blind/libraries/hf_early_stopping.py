"""FIELD
source: huggingface/transformers#17478 (training hangs at its end in dist.barrier(): each process computed another metric, and the early
    stopping of one of them ended its training while the others went on)
mechanism: two ranks under Trainer; the metric comes from what this rank's own forward passes left in a list, so rank 1 sees no improvement,
    stops early and enters the barrier before the best model is loaded, while rank 0 waits in the gradient exchange of its next step
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: hf_finetune
"""

import os
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
signal.alarm(300)

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

torch.set_num_threads(1)
RANK = int(os.environ["RANK"])
seen_lengths = []


class Tickets(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        ids = torch.randint(3, 2000, (48,))
        return {"input_ids": ids, "labels": int(ids[0] > 1000)}


class Classifier(BertForSequenceClassification):
    def forward(self, input_ids=None, labels=None, **rest):
        seen_lengths.append(input_ids.shape[0])
        return super().forward(input_ids=input_ids, labels=labels, **rest)


class StoppedEarly(TrainerCallback):
    def on_evaluate(self, args, state, control, **kwargs):
        if control.should_training_stop:
            print("\nONSET", flush=True)


def coverage(given):
    return {"coverage": float(len(seen_lengths)) if RANK == 0 else 1.0}


where = os.path.join(tempfile.gettempdir(), f"tickets-{os.environ['TORCHELASTIC_RUN_ID']}")
config = BertConfig(vocab_size=2000, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256)
trainer = Trainer(
    model=Classifier(config),
    args=TrainingArguments(
        output_dir=where,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        eval_strategy="steps",
        eval_steps=15,
        save_strategy="steps",
        save_steps=15,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="coverage",
        greater_is_better=True,
        max_steps=1_000_000,
        logging_steps=5,
        report_to=[],
    ),
    train_dataset=Tickets(20_000),
    eval_dataset=Tickets(64),
    compute_metrics=coverage,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=2), StoppedEarly()],
)
trainer.train()
