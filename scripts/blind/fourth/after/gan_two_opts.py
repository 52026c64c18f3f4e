"""FIELD
source: own (an ordinary GAN with two optimizers)
mechanism: a small GAN on the CPU: two discriminator steps and one generator step; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""

import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
gen = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 784), torch.nn.Tanh())
dis = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.LeakyReLU(0.2), torch.nn.Linear(256, 1))
opt_g, opt_d = torch.optim.Adam(gen.parameters(), 2e-4), torch.optim.Adam(dis.parameters(), 2e-4)
bce = torch.nn.functional.binary_cross_entropy_with_logits
for step in range(10**6):
    for _ in range(2):
        real, fake = torch.rand(128, 784) * 2 - 1, gen(torch.randn(128, 32)).detach()
        loss_d = bce(dis(real), torch.ones(128, 1)) + bce(dis(fake), torch.zeros(128, 1))
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
    loss_g = bce(dis(gen(torch.randn(128, 32))), torch.ones(128, 1))
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step == 100:
        print("ONSET", flush=True)
    if step % 50 == 0:
        print(step, loss_d.item(), loss_g.item(), flush=True)
