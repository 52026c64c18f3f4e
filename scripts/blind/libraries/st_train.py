"""FIELD
source: own (sentence-transformers: pairs with a ranking loss, as its training overview shows it)
mechanism: a small BERT built from a config embeds pairs of sentences; SentenceTransformerTrainer trains it; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: st_slow_evaluator
"""

import os
import random
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
signal.alarm(300)

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, TrainerCallback

torch.set_num_threads(1)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(3000))]
folder = tempfile.mkdtemp()
spelling = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
spelling.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(
    tokenizer_object=spelling, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    mask_token="[MASK]", model_max_length=64,
).save_pretrained(folder)
BertModel(
    BertConfig(
        vocab_size=len(words), hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=384,
        max_position_embeddings=64,
    )
).save_pretrained(folder)
body = Transformer(folder, max_seq_length=64)
model = SentenceTransformer(modules=[body, Pooling(128)], device="cpu")


class Begun(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 20:
            print("\nONSET", flush=True)


def sentence():
    return " ".join(random.choices(words[5:], k=random.randint(8, 30)))


pairs = Dataset.from_dict({"anchor": [sentence() for _ in range(4000)], "positive": [sentence() for _ in range(4000)]})
SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=1_000_000, per_device_train_batch_size=16,
        logging_steps=10, save_strategy="no", report_to=[],
    ),
    train_dataset=pairs,
    loss=MultipleNegativesRankingLoss(model),
    callbacks=[Begun()],
).train()
