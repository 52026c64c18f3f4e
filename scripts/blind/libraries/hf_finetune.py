"""FIELD
source: own (transformers' Trainer as its text classification example uses it)
mechanism: a small BERT is fine-tuned by Trainer on the CPU with two loader workers and a log line every 20 steps; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: hf_eval_logits
"""

import os
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
signal.alarm(300)

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        ids = torch.randint(3, 4000, (64,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0] > 2000)}


class Begun(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 40:
            print("\nONSET", flush=True)


config = BertConfig(vocab_size=4000, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        per_device_train_batch_size=16,
        dataloader_num_workers=2,
        max_steps=1_000_000,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=Reviews(),
    callbacks=[Begun()],
)
trainer.train()
