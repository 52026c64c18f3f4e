"""Triton tries many ways to run a matrix product, one after the other, before the first step can use one."""

import itertools

import accelerator
import stage
import torch
import triton
import triton.language as tl

WAYS = [
    triton.Config({"rows": rows, "columns": columns, "depth": 32}, num_warps=4, num_stages=3)
    for rows, columns in itertools.product((32, 64, 128), (32, 64, 128))
]


def measure(call, quantiles):
    return triton.testing.do_bench(call, warmup=200, rep=3000, quantiles=quantiles)


@triton.autotune(WAYS, key=["side"], do_bench=measure)
@triton.jit
def multiply(a, b, c, side, rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((rows, columns), dtype=tl.float32)
    for start in range(0, side, depth):
        inner = start + tl.arange(0, depth)
        total += tl.dot(
            tl.load(a + row[:, None] * side + inner[None, :]), tl.load(b + inner[:, None] * side + column[None, :])
        )
    tl.store(c + row[:, None] * side + column[None, :], total.to(tl.bfloat16))


def product(side):
    a, b = (torch.randn(side, side, device=card, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    multiply[lambda way: (triton.cdiv(side, way["rows"]), triton.cdiv(side, way["columns"]))](a, b, c, side)
    return c


args = stage.arguments(__doc__)
card = accelerator.device()
for way in WAYS:  # compiled beforehand: what follows is the trying
    multiply.fn.warmup(
        torch.bfloat16, torch.bfloat16, torch.bfloat16, 1024, **way.kwargs, num_warps=4, num_stages=3, grid=(1,)
    )
head = torch.nn.Linear(1024, 1024).to(card)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
for step in range(10**9):
    inputs = torch.randn(1024, 1024, device=card)
    if step >= args.steps:
        if step == args.steps:
            stage.onset()
        inputs = product(1024 * (step - args.steps + 1))[:1024, :1024].float()
    loss = head(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
