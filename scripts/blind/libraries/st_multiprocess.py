"""FIELD
source: huggingface/sentence-transformers#3920 (multi-process encoding waits for ever for the result of a worker that has died)
mechanism: embeddings for a training set are made by a pool of two processes; one of them is killed in the midst of a chunk, as the OOM
    killer does, and the parent waits in output_queue.get() for a result that never comes
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker
blame: none
twin: st_train
"""

import os
import random
import signal
import tempfile
import threading
import time

os.environ["HF_HUB_OFFLINE"] = "1"
signal.alarm(300)

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.set_num_threads(1)


def build():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(3000))]
    folder = tempfile.mkdtemp()
    spelling = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    spelling.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=spelling, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=64,
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words), hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return SentenceTransformer(modules=[Transformer(folder, max_seq_length=64), Pooling(256)], device="cpu"), words


def lose_one(pool):
    while pool["input"].qsize() > 10:
        time.sleep(0.1)
    time.sleep(2)
    print("\nONSET", flush=True)
    os.kill(pool["processes"][1].pid, signal.SIGKILL)


if __name__ == "__main__":
    model, words = build()
    texts = [" ".join(random.choices(words[5:], k=40)) for _ in range(6_000)]
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    threading.Thread(target=lose_one, args=(pool,), daemon=True).start()
    embeddings = model.encode(texts, pool=pool, chunk_size=500, batch_size=16)
    print("encoded", embeddings.shape, flush=True)
