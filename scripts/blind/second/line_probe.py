"""FIELD
source: https://github.com/pytorch/pytorch/issues/134191 (a debugger's tracer, pydevd, was active during training: 6 ms became 187 ms)
mechanism: a trace function (sys.settrace) that looks at the local tensors at each line was switched on to find a NaN and never switched off
needs: cpu
ranks: 1
onset: printed
state: slow
cause: debug_apis_on, host_bound_python
blame: look (line_probe.py)
twin: none
"""
import sys, time
import torch, torch.nn as nn

torch.set_num_threads(1)

class NanProbe:
    def __init__(self, files):
        self.files, self.lines, self.found = files, 0, []

    def look(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        self.lines += 1
        for name, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not torch.isfinite(value).all():
                self.found.append((frame.f_code.co_name, frame.f_lineno, name))
        return self.look

    def start(self):
        sys.settrace(self.look)

class SlotCell(nn.Module):
    def __init__(self, width, slots):
        super().__init__()
        self.key, self.write, self.gate = nn.Linear(width, slots), nn.Linear(width, width), nn.Linear(2 * width, width)

    def forward(self, x, memory):
        weight = self.key(x).softmax(-1)
        read = torch.einsum('bs,bsw->bw', weight, memory)
        gate = torch.sigmoid(self.gate(torch.cat([x, read], -1)))
        out = gate * x + (1 - gate) * read
        fresh = torch.tanh(self.write(out))
        memory = memory + weight.unsqueeze(-1) * fresh.unsqueeze(1)
        return out, memory

def unroll(cell, seq, slots):
    memory = seq.new_zeros(seq.shape[1], slots, seq.shape[2])
    outs = []
    for x in seq:
        out, memory = cell(x, memory)
        outs.append(out)
    return torch.stack(outs)

def train_step(cell, head, opt, slots):
    seq = torch.randn(24, 16, 48)
    target = seq.roll(3, 0)
    loss = (head(unroll(cell, seq, slots)) - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
    opt.step()
    return loss.item()

def main():
    slots = 12
    cell, head = SlotCell(48, slots), nn.Linear(48, 48)
    opt = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-3)
    probe, probing, begun = NanProbe({__file__}), False, time.time()
    step = 0
    while time.time() - begun < 700:
        loss = train_step(cell, head, opt, slots)
        if step % 20 == 0:
            print(f'{time.time() - begun:.0f} s step {step} loss {loss:.4f} nan {len(probe.found)}', flush=True)
        if not probing and time.time() - begun > 8:
            probing = True
            print('ONSET', flush=True)
            probe.start()
        step += 1

if __name__ == '__main__':
    main()
