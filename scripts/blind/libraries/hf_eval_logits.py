"""FIELD
source: huggingface/transformers#25313 and huggingface/transformers#12878 (the evaluation seems stuck after some twenty samples: Trainer
    keeps the logits of every sample and joins them anew for each batch)
mechanism: Trainer evaluates a small causal model every few steps; its logits over the whole vocabulary are concatenated batch after
    batch, so that each batch takes longer than the one before; the evaluation takes minutes and goes on
needs: none
ranks: 1
onset: printed
state: busy, slow
cause: evaluating
blame: none
twin: hf_finetune
"""

import os
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
signal.alarm(300)

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)


class Texts(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        ids = torch.randint(0, 4096, (64,))
        return {"input_ids": ids, "labels": ids}


class Begun(TrainerCallback):
    said = False

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate and not self.said:
            self.said = True
            print("\nONSET", flush=True)


def token_accuracy(given):
    return {"accuracy": float((given.predictions.argmax(-1)[:, :-1] == given.label_ids[:, 1:]).mean())}


trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_positions=64, n_embd=96, n_layer=3, n_head=4)),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=25,
        max_steps=1_000_000,
        logging_steps=25,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=Texts(20_000),
    eval_dataset=Texts(1_000),
    compute_metrics=token_accuracy,
    callbacks=[Begun()],
)
trainer.train()
