"""FIELD
source: huggingface/Math-Verify#65 and huggingface/open-r1#420 (the reward function hangs for ever on a power tower that the model wrote; the
    timeout does not fire)
mechanism: GRPOTrainer generates completions and scores them; one of them is a tower of powers, and the reward function has sympy work it
    out: one integer power in C that keeps the GIL and never ends
needs: none
ranks: 1
onset: printed
state: hung, busy
cause: held_gil, endless_python, computing_on_host, unknown
blame: power_reward (scripts/blind/libraries/trl_grpo_reward.py)
twin: trl_sft
"""

import os
import random
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
signal.alarm(300)

import sympy
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)
words = ["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(500))]
spelling = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
spelling.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=spelling, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
)
config = Qwen2Config(
    vocab_size=len(words), hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, eos_token_id=1,
)
calls = 0


def power_reward(completions, **kwargs):
    global calls
    calls += 1
    answers = [f"2**{len(text) % 9}" for text in completions]
    if calls == 8:
        print("\nONSET", flush=True)
        answers[0] = "5**(5**(5**5))"
    return [1.0 if sympy.sympify(answer) % 2 else 0.0 for answer in answers]


random.seed(2)
prompts = [" ".join(random.choices(words[3:], k=12)) for _ in range(256)]
trainer = GRPOTrainer(
    model=Qwen2ForCausalLM(config),
    processing_class=tokenizer,
    reward_funcs=power_reward,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, max_steps=1_000_000, per_device_train_batch_size=8,
        num_generations=4, max_completion_length=24, logging_steps=1, save_strategy="no", report_to=[],
    ),
)
trainer.train()
