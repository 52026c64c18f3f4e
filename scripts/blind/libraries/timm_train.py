"""FIELD
source: own (a timm model with its optimizer factory, scheduler and EMA, after its training script)
mechanism: a small ResNet of timm is trained on random images with an exponential moving average of its weights; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: timm_resolutions
"""

import signal

signal.alarm(300)

import timm
import timm.optim
import timm.scheduler
import timm.utils
import torch

torch.set_num_threads(1)
model = timm.create_model("resnet10t", pretrained=False, num_classes=20)
optimizer = timm.optim.create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.02)
scheduler, _ = timm.scheduler.create_scheduler_v2(optimizer, sched="cosine", num_epochs=100, updates_per_epoch=200)
ema = timm.utils.ModelEmaV3(model, decay=0.999)
meter = timm.utils.AverageMeter()
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(1024, 3, 64, 64), torch.randint(0, 20, (1024,))), 32, shuffle=True
)
update = 0
for epoch in range(1_000_000):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model, step=update)
        meter.update(loss.item(), images.size(0))
        update += 1
        scheduler.step_update(update)
        if update % 20 == 0:
            print(f"Train: {epoch} [{update}] Loss: {meter.avg:.3f}", flush=True)
        if update == 40:
            print("ONSET", flush=True)
    scheduler.step(epoch + 1)
