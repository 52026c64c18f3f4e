"""FIELD
source: FoundationVision/ByteTrack#437 ("stuck when epoch 5 ends": it was only the slow COCO summary on the CPU)
mechanism: after the first epoch the detector is evaluated: a forward pass over the validation set, then the AP
    accumulation over classes, areas, thresholds in plain Python, silent for minutes
needs: none
ranks: 1
onset: printed
state: busy
cause: evaluating, computing_on_host
blame: none
twin: none
"""
import logging
import signal
import time
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s | %(name)s | %(message)s")
log = logging.getLogger("trainer")
AREAS = {"all": (0, 1), "small": (0, 0.05), "medium": (0.05, 0.2), "large": (0.2, 1)}
THRESHOLDS = [0.5 + 0.05 * i for i in range(10)]


@dataclass
class Exp:
    classes: int = 80
    queries: int = 30
    batch: int = 16
    epoch_seconds: float = 9.0
    val_images: int = 448
    lr: float = 1e-3


class TinyDetector(nn.Module):
    def __init__(self, exp):
        super().__init__()
        self.exp = exp
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(4)
        )
        self.head = nn.Linear(512, exp.queries * (4 + exp.classes))

    def forward(self, images):
        out = self.head(self.stem(images).flatten(1)).view(len(images), self.exp.queries, -1)
        return out[..., :4].sigmoid(), out[..., 4:]


def iou(a, b):
    x0, y0 = max(a[0], b[0]), max(a[1], b[1])
    x1, y1 = min(a[0] + a[2], b[0] + b[2]), min(a[1] + a[3], b[1] + b[3])
    inter = max(x1 - x0, 0.0) * max(y1 - y0, 0.0)
    return inter / (a[2] * a[3] + b[2] * b[3] - inter + 1e-9)


class BoxEvaluator:
    def __init__(self, exp):
        self.exp = exp
        self.detections = defaultdict(list)
        self.truth = defaultdict(list)

    @torch.no_grad()
    def collect(self, model):
        model.eval()
        for first in range(0, self.exp.val_images, self.exp.batch):
            boxes, logits = model(torch.rand(self.exp.batch, 3, 96, 96))
            scores = logits.softmax(-1)
            for i in range(self.exp.batch):
                self.truth[first + i] = torch.rand(12, 4).tolist()
                self.detections[first + i] = list(zip(boxes[i].tolist(), scores[i].tolist(), strict=True))

    def match(self, image, cls, low, high, threshold):
        found = sorted(self.detections[image], key=lambda d: -d[1][cls])
        free = [g for g in self.truth[image] if low <= g[2] * g[3] <= high]
        hits = 0
        for box, _ in found:
            best = max(free, key=lambda g: iou(box, g), default=None)
            if best is not None and iou(box, best) > threshold:
                free.remove(best)
                hits += 1
        return hits, len(found)

    def summarize(self):
        table = {}
        for cls in range(self.exp.classes):
            for name, (low, high) in AREAS.items():
                for threshold in THRESHOLDS:
                    pairs = [self.match(image, cls, low, high, threshold) for image in self.truth]
                    table[cls, name, threshold] = sum(h for h, _ in pairs) / sum(n for _, n in pairs)
        return sum(table.values()) / len(table)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    exp = Exp()
    model = TinyDetector(exp)
    opt = torch.optim.AdamW(model.parameters(), exp.lr)
    for epoch in range(80):
        model.train()
        began, it = time.time(), 0
        while time.time() - began < exp.epoch_seconds:
            boxes, logits = model(torch.rand(exp.batch, 3, 96, 96))
            labels = torch.randint(exp.classes, logits.shape[:2])
            loss = (boxes - 0.5).abs().mean() + nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            it += 1
            if it % 50 == 0:
                log.info("epoch: %d/80, iter: %d, total_loss: %.3f", epoch + 1, it, loss.item())
        log.info("Evaluate in main process...")
        if epoch == 0:
            print("ONSET", flush=True)
        evaluator = BoxEvaluator(exp)
        evaluator.collect(model)
        log.info("mAP: %.4f", evaluator.summarize())


if __name__ == "__main__":
    main()
