"""A long validation: forward passes without gradients, no optimizer step for many minutes."""

import stage
import torch


@torch.no_grad()
def validate(model, batches):
    model.eval()
    total = 0.0
    for _ in range(batches):
        images = torch.randn(16, 3, 64, 64)
        total += model(images).argmax(1).float().mean().item()
    model.train()
    return total / batches


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(32 * 15 * 15, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(cnn.parameters(), lr=1e-2)
    while True:
        for _ in range(args.steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(cnn(torch.randn(16, 3, 64, 64)), torch.randint(10, (16,))).backward()
            optimizer.step()
        stage.onset()
        validate(cnn, 100_000)


main()
