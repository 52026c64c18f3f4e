"""FIELD
source: own (first runs that build their extensions for minutes)
mechanism: before training goes on, the script compiles a generated C++ kernel file for several head sizes with g++ -O3, one after the other, each half a minute
needs: none
ranks: 1
onset: printed
state: busy
cause: compiling, waiting_on_work, starting
blame: none
twin: none
"""

import os
import signal
import subprocess
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()


def source(head_dim):
    lines = [
        "#include <array>",
        "#include <cmath>",
        "#include <map>",
        "#include <string>",
        "#include <regex>",
        "#include <functional>",
    ]
    for i in range(260):
        lines.append(
            f"template<int N> struct K{i} {{ static float run(std::array<float, N> x) {{ std::map<std::string, std::function<float(float)>> m;"
            f' m["a"] = [](float v) {{ return std::tanh(v) + {i}; }}; float s = 0; for (int j = 0; j < N; ++j) s += m["a"](x[j]); return s; }} }};'
        )
        lines.append(f"float call{i}() {{ std::array<float, {head_dim}> x{{}}; return K{i}<{head_dim}>::run(x); }}")
    return "\n".join(lines)


def build(head_dim):
    path = os.path.join(folder, f"attn_{head_dim}")
    with open(path + ".cpp", "w") as file:
        file.write(source(head_dim))
    subprocess.check_call(["g++", "-O3", "-std=c++17", "-fPIC", "-shared", path + ".cpp", "-o", path + ".so"])


net = torch.nn.Linear(128, 128)
opt = torch.optim.SGD(net.parameters(), lr=0.01)


def train(steps):
    for step in range(steps):
        x = torch.randn(64, 128)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


train(300)
print("ONSET", flush=True)
for head_dim in (16, 32, 48, 64, 80, 96, 112, 128):
    print("building attention kernel for head size", head_dim, flush=True)
    build(head_dim)
print("built", flush=True)
while True:
    train(1000)
    print("1000 steps", flush=True)
