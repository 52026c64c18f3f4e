"""FIELD
source: pytorch/pytorch#97783 and pytorch/pytorch#111182 (the first epoch is very slow with torch.compile: every new shape of a batch is compiled anew)
mechanism: a ViT of timm with dynamic image sizes under torch.compile(dynamic=False); each batch has another resolution, so each step
    compiles for many seconds and then trains for a fraction of one
needs: none
ranks: 1
onset: printed
state: slow, busy
cause: recompiling, compiling
blame: none
twin: timm_train
"""

import signal

signal.alarm(300)

import timm
import torch

torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 1000
model = timm.create_model("test_vit", pretrained=False, num_classes=10, dynamic_img_size=True)
compiled = torch.compile(model, dynamic=False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
step = 0
while True:
    for side in range(64, 64 + 16 * 40, 16):
        images, labels = torch.randn(2, 3, side, side), torch.randint(0, 10, (2,))
        loss = torch.nn.functional.cross_entropy(compiled(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print("step", step, "side", side, loss.item(), flush=True)
        if step == 2:
            print("ONSET", flush=True)
