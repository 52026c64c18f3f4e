"""FIELD
source: own (extensions built on first use, one translation unit per head size, as flash-attention and cpp_extension.load do)
mechanism: before the second stage the trainer builds C++ kernels with g++, unit after unit, and waits in subprocess.run() for each
needs: cpu
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, compiling
blame: none
twin: none
"""
import os
import shutil
import subprocess
import tempfile
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)

TEMPLATE = r"""
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <regex>
#include <string>
#include <tuple>
#include <vector>
template <int H, int T> struct Tile {
  std::array<float, T> acc{};
  template <int K> void step(const float *q, const float *k) {
    for (int i = 0; i < T; ++i) acc[i] += q[(i * K) %% H] * k[(i + K) %% H];
    if constexpr (K > 1) step<K - 1>(q + 1, k + 1);
  }
  float fold() const { return std::accumulate(acc.begin(), acc.end(), 0.f); }
};
template <int H, int T> float tile(const float *q, const float *k) {
  Tile<H, T> t;
  t.template step<24>(q, k);
  return t.fold();
}
template <int H, int... Ts> float run(const float *q, const float *k, std::integer_sequence<int, Ts...>) {
  return (tile<H, Ts + 4>(q, k) + ... + 0.f);
}
extern "C" float attention_%(h)d(const float *q, const float *k) {
  std::map<std::string, std::vector<float>> seen;
  std::regex name("head_([0-9]+)");
  seen[std::regex_replace(std::string("head_%(h)d"), name, "$1")].push_back(q[0]);
  return run<%(h)d>(q, k, std::make_integer_sequence<int, 160>{}) + seen.begin()->second[0];
}
"""


def build_kernels(head_sizes, flags, time_limit):
    folder, began, objects = tempfile.mkdtemp(prefix="torch_extensions_"), time.time(), []
    for h in head_sizes:
        source = os.path.join(folder, f"attn_h{h}.cpp")
        with open(source, "w") as f:
            f.write(TEMPLATE % {"h": h})
        subprocess.run([shutil.which("g++") or "c++", *flags, "-fPIC", "-c", source, "-o", source[:-3] + "o"], check=True)
        objects.append(source[:-3] + "o")
        if time.time() - began > time_limit:
            break
    shutil.rmtree(folder)
    return len(objects)


def main():
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for stage in range(2):
        for step in range(500):
            x = torch.randn(8, 32, 64)
            loss = (model(x) - x.flip(1)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"stage {stage} loss {loss.item():.4f}", flush=True)
        if stage == 0:
            print("ONSET", flush=True)
            print("built", build_kernels(range(16, 4096, 8), ["-std=c++17", "-O3", "-march=native"], 360), "kernels", flush=True)


if __name__ == "__main__":
    main()
