"""Look-alike of a copy-bound run: as many frames, from pinned memory on a stream of their own, while the GPU works. Healthy."""

import accelerator
import decoder
import stage
import torch

FRAMES = {"loud": 512, "quiet": 256, "masked": 1024}

args = stage.arguments(__doc__)
card = accelerator.device()
model, optimizer = decoder.build(card)
look = torch.nn.Conv2d(3, 8, 16, stride=16).to(card)
video = torch.rand(FRAMES[args.strength], 3, 256, 256).pin_memory()
copies = torch.cuda.Stream()


def fetch():
    with torch.cuda.stream(copies):
        return video.to(card, non_blocking=True)


ahead = fetch()
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    torch.cuda.current_stream().wait_stream(copies)
    frames, ahead = ahead, fetch()
    frames.record_stream(torch.cuda.current_stream())
    hint = look(frames).mean()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, 16))
    if step % 5 == 0:
        print(step, loss.item(), hint.item(), flush=True)
