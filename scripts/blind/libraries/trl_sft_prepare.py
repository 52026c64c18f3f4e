"""FIELD
source: huggingface/trl#1299 and huggingface/open-r1#435 (preparing the data set takes forever: the constructor of SFTTrainer tokenizes and
    packs every sample before the first step)
mechanism: SFTTrainer is constructed with a data set of long documents; its map over the rows, with a formatting function in Python,
    tokenizes for minutes with a progress bar before any training
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host, starting
blame: none
twin: trl_sft
"""

import os
import random
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()
signal.alarm(300)

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)
words = ["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(2000))]
spelling = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
spelling.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=spelling, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)


def as_document(row):
    drawn = random.Random(row["number"])
    return " ".join(drawn.choices(words[3:], k=3000))


config = Qwen2Config(
    vocab_size=len(words), hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, eos_token_id=1,
)
print("\nONSET", flush=True)
trainer = SFTTrainer(
    model=Qwen2ForCausalLM(config),
    processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"number": list(range(150_000))}),
    formatting_func=as_document,
    args=SFTConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, max_steps=1_000_000, per_device_train_batch_size=8,
        max_length=128, packing=True, logging_steps=10, save_strategy="no", report_to=[],
    ),
)
trainer.train()
