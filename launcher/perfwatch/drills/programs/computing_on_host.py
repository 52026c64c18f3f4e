"""Between two steps: the whitening of a large feature matrix, one LAPACK call that takes minutes."""

import stage
import torch


def whiten(features):
    covariance = features.T @ features
    values, vectors = torch.linalg.eigh(covariance)
    return features @ vectors / values.clamp(min=1e-6).sqrt()


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    probe = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(probe.parameters(), lr=1e-3)
    batch = torch.randn(256, 1024)
    for step in range(100_000_000):
        if step == args.steps:
            stage.onset()
            whiten(torch.randn(12_000, 12_000))
        optimizer.zero_grad()
        probe(batch).square().mean().backward()
        optimizer.step()


main()
