"""FIELD
source: own (trl's SFTTrainer with a LoRA adapter of peft, as its quick start shows it)
mechanism: a small Qwen2 built from a config is tuned on a made-up instruction set with LoRA; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: trl_sft_prepare
"""

import os
import random
import signal
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
signal.alarm(300)

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)
words = ["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(2000))]
spelling = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
spelling.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=spelling, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)


class Begun(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 15:
            print("\nONSET", flush=True)


config = Qwen2Config(
    vocab_size=len(words), hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, eos_token_id=1,
)
random.seed(1)
texts = [" ".join(random.choices(words[3:], k=random.randint(20, 100))) for _ in range(1000)]
trainer = SFTTrainer(
    model=Qwen2ForCausalLM(config),
    processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"text": texts}),
    peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    args=SFTConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, max_steps=1_000_000, per_device_train_batch_size=8,
        max_length=128, logging_steps=10, save_strategy="no", report_to=[],
    ),
    callbacks=[Begun()],
)
trainer.train()
