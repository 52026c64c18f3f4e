"""A pool of processes resamples all recordings once, before the training that will read them."""

import concurrent.futures
import sys

import stage
import torch

RECORDINGS, SAMPLES = 200_000, 3_000


def resample(number):
    wave = [((number * 31 + k * 17) % 1000) / 500 - 1 for k in range(SAMPLES)]
    return [sum(wave[k : k + 6]) / 6 for k in range(0, SAMPLES - 6, 6)][:64]


def prepare(pool, count):
    resampled = []
    for done, one in enumerate(pool.map(resample, range(count), chunksize=8)):
        resampled.append(one)
        if done % 500 == 0:
            print(f"{done} of {count}", file=sys.stderr, flush=True)
    return torch.tensor(resampled)


def train(recordings, steps):
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        batch = recordings[torch.randint(len(recordings), (32,))]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        train(prepare(pool, 64), args.steps)
        stage.onset()
        train(prepare(pool, RECORDINGS), 10**9)


if __name__ == "__main__":
    main()
