"""Walk a program from its defaults to the best, one lever at a time, as ``perfwatch headroom`` proposes them; the MFU after each.

    python scripts/headroom/walk.py nanogpt FOLDER     nanoGPT's 124M model, batches of 12, eager; written anew
    python scripts/headroom/walk.py resnet FOLDER      ResNet-50 in the loop of PyTorch's imagenet example, generated images
    python scripts/headroom/walk.py trainer FOLDER     a decoder of one billion parameters under Hugging Face's Trainer

Each state of the program runs in a process of its own: its step is timed, then a window of three steps is traced without a profiler
beside. The first lever of ``perfwatch headroom TRACE`` that the program has a switch for is turned on next; one that brings less than
1 % is turned off again. At last ``best`` has every switch on that its author would use. FOLDER/NAME.json holds the rows.
"""

import argparse
import json
import lzma
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CARD = torch.cuda.is_available()
DEVICE = "cuda" if CARD else "cpu"
PEAK_FLOPS = 989e12  # dense bf16 of an H100 or H200
MOST_STEPS, STATE_SECONDS, LEAST_GAIN = 9, 150.0, 1.01
WARM, TIMED_SECONDS, MOST_TIMED, TRACED = 6, 6.0, 60, 3
SWITCHES = {
    "nanogpt": ("compile", "micro_batch", "cuda_graphs", "fused_optimizer", "tf32", "synchronising_reads"),
    "resnet": ("mixed_precision", "channels_last", "compile", "synchronising_reads", "data_loading", "cudnn_benchmark",
               "fused_optimizer", "tf32", "micro_batch"),
    "trainer": ("mixed_precision", "flash_attention", "fused_optimizer", "compile", "micro_batch", "tf32"),
}  # fmt: skip
BEST = {
    "nanogpt": ("compile", "micro_batch", "fused_optimizer", "tf32"),
    "resnet": ("mixed_precision", "channels_last", "compile", "synchronising_reads", "data_loading", "cudnn_benchmark",
               "fused_optimizer", "tf32"),
    "trainer": ("mixed_precision", "flash_attention", "fused_optimizer", "compile", "tf32", "micro_batch"),
}  # fmt: skip
On = frozenset[str]
Step = Callable[[], Any]


def main() -> None:
    """The walk, or one state of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SWITCHES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no state after so long")
    parser.add_argument("--state", help="these levers on, separated by commas: one state alone")
    parser.add_argument("--label", default="state")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.state is None:
        walk(options.name, options.folder, options.seconds)
        return
    on = frozenset(one for one in options.state.split(",") if one)
    if options.name != "trainer":  # which sets it by its own argument
        torch.backends.cuda.matmul.allow_tf32 = "tf32" in on
    torch.backends.cudnn.benchmark = "cudnn_benchmark" in on
    torch.manual_seed(1337)
    {"nanogpt": nanogpt, "resnet": resnet, "trainer": trainer}[options.name](on, options.folder / options.label)


def walk(name: str, folder: Path, seconds: float) -> None:
    """State after state; the rows are written after each."""
    ends = time.monotonic() + seconds
    on: list[str] = []
    tried: set[str] = set()
    kept: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for number in range(MOST_STEPS):
        if time.monotonic() > ends:
            break
        row = state(name, folder, f"{name}{number}", on)
        rows.append(row)
        if "seconds" in row and kept:
            row["gain"] = kept["seconds_each"] / row["seconds_each"]
        if number and ("seconds" not in row or row["gain"] < LEAST_GAIN):
            row["kept"] = False
            on = on[:-1]
        else:
            kept = row
            if "seconds" not in row:
                break
            kept["told"] = told(folder / f"{name}{number}.json", row["seconds"])
        _write(folder, name, rows)
        chosen = next(
            (one for one in kept["told"] if one["lever"] in SWITCHES[name] and one["lever"] not in (*on, *tried)), None
        )
        if chosen is None:
            break
        tried.add(chosen["lever"])
        on = [*on, chosen["lever"]]
        rows.append({"lever": chosen["lever"], "predicted": chosen["times"]})
        _write(folder, name, rows)
    if time.monotonic() < ends:
        rows.append(state(name, folder, f"{name}-best", BEST[name]) | {"best": True})
        if "seconds" in rows[-1]:
            rows[-1]["told"] = told(folder / f"{name}-best.json", rows[-1]["seconds"])
    _write(folder, name, rows)


def state(name: str, folder: Path, label: str, on: Any) -> dict[str, Any]:
    """Run it: what is on, seconds of a step, MFU; or how it failed."""
    command = [sys.executable, __file__, name, str(folder), "--state", ",".join(on), "--label", label]
    row: dict[str, Any] = {"on": list(on)}
    with (folder / f"{label}.log").open("wb") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=log, timeout=STATE_SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
    try:
        row |= json.loads((folder / f"{label}.row").read_text())
    except OSError:
        row["failed"] = f"exit code {code}: " + (folder / f"{label}.log").read_text(errors="replace")[-500:]
    print(name, label, json.dumps({key: row.get(key) for key in ("on", "seconds", "mfu", "failed")}), flush=True)
    return row


def told(trace: Path, seconds: float) -> list[dict[str, Any]]:
    """The levers of ``perfwatch headroom TRACE``."""
    command = [sys.executable, "-m", "perfwatch", "headroom", str(trace), "--step-seconds", f"{seconds:.6f}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["levers"]
    except (ValueError, KeyError):
        print("headroom:", done.stdout[-300:], done.stderr[-500:], flush=True)
        found = []
    print("  told:", *(f"{one['lever']} {one['times']}" for one in found), flush=True)
    with trace.open("rb") as file:
        trace.with_suffix(".json.xz").write_bytes(lzma.compress(file.read(), preset=1))
    trace.unlink()
    return found


def _write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / f"walk-{name}.json").write_text(json.dumps(rows, indent=1))


def wait() -> None:
    """For the card."""
    if CARD:
        torch.cuda.synchronize()


def profiler() -> Any:
    """Without stacks."""
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if CARD else [])]
    return torch.profiler.profile(activities=kinds, record_shapes=True, profile_memory=True)


def keep(path: Path, times: list[float], flops: float, each: float) -> None:
    """The row of a state: the median step; ``flops`` and ``each`` (samples or tokens) are of one step."""
    seconds = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() if CARD else 0
    row = {
        "seconds": seconds,
        "seconds_each": seconds / each,
        "mfu": flops / seconds / PEAK_FLOPS,
        "steps": len(times),
        "peak_bytes": peak,
    }
    path.with_suffix(".row").write_text(json.dumps(row))


def measured(step: Step, path: Path, flops: float, each: float) -> None:
    """Time it, then trace it."""
    for _ in range(WARM):
        step()
    wait()
    times: list[float] = []
    began = time.monotonic()
    while len(times) < (MOST_TIMED if CARD else 2) and time.monotonic() - began < TIMED_SECONDS:
        begin = time.perf_counter()
        step()
        step()
        wait()
        times.append((time.perf_counter() - begin) / 2)
    keep(path, times, flops, each)
    with profiler():
        step()
        wait()
    profile = profiler()
    step()
    wait()
    with profile:
        for _ in range(TRACED):
            step()
        wait()
    profile.export_chrome_trace(str(path.with_suffix(".json")))


class Block(nn.Module):
    """GPT-2's, without biases, as nanoGPT has it by default."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.c_fc, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        q, k, v = (
            one.view(batch, length, self.heads, -1).transpose(1, 2) for one in self.c_attn(self.ln_1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.out(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """The 124M model."""

    def __init__(self, words: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.h, self.ln_f = (
            nn.ModuleList(Block(width, width // 64) for _ in range(layers)),
            nn.LayerNorm(width, bias=False),
        )

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Tokens and what follows them to the loss."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(
            F.linear(self.ln_f(x), self.wte.weight).view(-1, self.wte.num_embeddings), targets.view(-1)
        )


def nanogpt(on: On, path: Path) -> None:
    """``python train.py --compile=False``: bf16, SDPA, five accumulated batches of 12 by 1,024."""
    words, width, layers, length, batch, parts = (50304, 768, 12, 1024, 12, 5) if CARD else (128, 64, 2, 32, 2, 2)
    if "micro_batch" in on:
        batch, parts = batch * parts, 1
    model = GPT(words, width, layers, length).to(DEVICE)
    count = sum(one.numel() for one in model.parameters()) - length * width
    mode = "reduce-overhead" if "cuda_graphs" in on else None
    called: Any = torch.compile(model, mode=mode) if {"compile", "cuda_graphs"} & on else model
    # nanoGPT takes the fused optimizer wherever there is one
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=CARD)
    data = torch.randint(words, (1 << 22,), dtype=torch.int64)

    def fetched() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - length, (batch,)).tolist()
        x = torch.stack([data[at : at + length] for at in starts])
        y = torch.stack([data[at + 1 : at + 1 + length] for at in starts])
        if CARD:
            return x.pin_memory().to(DEVICE, non_blocking=True), y.pin_memory().to(DEVICE, non_blocking=True)
        return x, y

    following = fetched()

    def step() -> None:
        nonlocal following
        for _ in range(parts):
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = called(*following) / parts
            following = fetched()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    tokens = batch * parts * length
    measured(step, path, (6 * count + 12 * layers * width * length) * tokens, tokens)


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Generated images: what decoding and cropping leave, without its cost."""

    def __init__(self, size: int) -> None:
        self.held = torch.randint(256, (8, 3, size, size), dtype=torch.uint8)

    def __len__(self) -> int:
        """As many as ImageNet has."""
        return 1_281_167

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Scaled to floats, as ToTensor does, and a class."""
        return self.held[index % 8].float().div_(255), index % 1000


def resnet(on: On, path: Path) -> None:
    """``main.py -a resnet50``: fp32, batches of 256, four workers, loss and accuracy read at each step."""
    from torchvision.models import resnet50

    batch, size, workers = (256, 224, 4) if CARD else (2, 64, 1)
    batch *= 2 if "micro_batch" in on else 1
    workers = 14 if "data_loading" in on and CARD else workers
    layout: Any = torch.channels_last if "channels_last" in on else torch.contiguous_format
    model = resnet50().to(DEVICE, memory_format=layout)
    called: Any = torch.compile(model) if "compile" in on else model
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, fused="fused_optimizer" in on or None
    )
    loader = torch.utils.data.DataLoader(
        Images(size), batch, shuffle=False, num_workers=workers, pin_memory=CARD, prefetch_factor=4
    )
    batches = iter(loader)
    seen: list[Any] = []

    def step() -> None:
        images, target = next(batches)
        images = images.to(DEVICE, non_blocking=True, memory_format=layout)
        target = target.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled="mixed_precision" in on):
            output = called(images)
            loss = F.cross_entropy(output, target)
        best = output.detach().topk(5, 1).indices == target[:, None]
        figures = [loss.detach(), best[:, :1].float().sum(), best.float().sum()]
        seen[:] = figures if "synchronising_reads" in on else [one.item() for one in figures]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    measured(step, path, 3 * 2 * 4.09e9 * batch, batch)


def trainer(on: On, path: Path) -> None:
    """``Trainer.train()`` of a Llama of 1.1 billion parameters on 1,024 tokens: fp32, eager attention, batches of 8."""
    import transformers

    width, layers, inner, words, length, batch = (2048, 16, 8192, 32000, 1024, 8) if CARD else (64, 2, 128, 128, 32, 2)
    batch *= 2 if "micro_batch" in on else 1
    config = transformers.LlamaConfig(
        hidden_size=width, num_hidden_layers=layers, intermediate_size=inner, vocab_size=words, use_cache=False,
        num_attention_heads=width // 64, num_key_value_heads=max(1, width // 256), max_position_embeddings=length,
        attn_implementation="sdpa" if "flash_attention" in on else "eager",
    )  # fmt: skip
    with torch.device(DEVICE):
        model = transformers.LlamaForCausalLM(config)
    count = sum(one.numel() for one in model.parameters()) - words * width
    data = torch.randint(words, (4096, length))

    class Tokens(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            one = data[index % len(data)]
            return {"input_ids": one, "labels": one}

    flops, tokens = (6 * count + 12 * layers * width * length) * batch * length, batch * length

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]
        """Times steps, then traces three."""

        def __init__(self) -> None:
            self.times: list[float] = []
            self.last, self.began, self.seen = 0.0, 0.0, 0
            self.profile: Any = None
            self.left = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seen += 1
            if self.seen < WARM:
                return
            if self.profile is None:
                if self.seen % 2:  # of two steps, so that waiting for the card costs little
                    return
                wait()
                now = time.perf_counter()
                if self.last:
                    self.times.append((now - self.last) / 2)
                self.last, self.began = now, self.began or now
                if len(self.times) < (MOST_TIMED // 2 if CARD else 2) and now - self.began < TIMED_SECONDS:
                    return
                keep(path, self.times, flops, tokens)
                with profiler():
                    wait()
                self.profile, self.left = profiler(), TRACED + 1
            if self.left == TRACED:
                wait()
                self.profile.__enter__()
            elif self.left == 0:
                wait()
                self.profile.__exit__(None, None, None)
                self.profile.export_chrome_trace(str(path.with_suffix(".json")))
                control.should_training_stop = True
            self.left -= 1

    arguments = transformers.TrainingArguments(
        output_dir=str(path), per_device_train_batch_size=batch, max_steps=10_000, report_to="none", save_strategy="no",
        logging_steps=500, bf16="mixed_precision" in on, tf32=True if "tf32" in on and CARD else None, disable_tqdm=True,
        optim="adamw_torch_fused" if "fused_optimizer" in on else "adamw_torch", torch_compile="compile" in on, use_cpu=not CARD,
    )  # fmt: skip
    transformers.Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Watch()]).train()


if __name__ == "__main__":
    main()
