"""FIELD
source: https://github.com/allenai/allennlp/issues/3909 ("Validation loop is extremely slow compared to training loop": decoding word by word, with the GPU in the 90s)
mechanism: after the first epoch the validation set is decoded token by token for more than five minutes without a line of output; then training goes on
needs: gpu
ranks: 1
onset: printed
state: busy
cause: evaluating
blame: none
twin: none
"""
import os, time
import torch, torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
VOCAB, WIDTH, HEADS, DEPTH, LENGTH = (200, 64, 4, 2, 24) if cpu else (16_000, 1024, 16, 8, 256)
TRAIN_BATCH, VALID_BATCH = (8, 8) if cpu else (48, 192)
VALID_SECONDS = 340

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.n2(x))

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.out = nn.Sequential(*[Block() for _ in range(DEPTH)]), nn.Linear(WIDTH, VOCAB)
    def forward(self, ids):
        return self.out(self.blocks(self.emb(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))))

@torch.inference_mode()
def validate(model):
    model.eval()
    until, references, matched = time.time() + VALID_SECONDS, 0, 0.0
    while time.time() < until:                    # as many references as fit into the time for validation
        reference = torch.randint(0, VOCAB, (VALID_BATCH, LENGTH), device=dev)
        ids = reference[:, :4]
        while ids.shape[1] < LENGTH:
            logits = model(ids)[:, -1].float() / 0.8
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
        matched += (ids == reference).float().mean().item() * VALID_BATCH
        references += VALID_BATCH
    model.train()
    return references, matched / references

def train(model, opt, seconds):
    until, step = time.time() + seconds, 0
    while time.time() < until:
        ids = torch.randint(0, VOCAB, (TRAIN_BATCH, LENGTH), device=dev)
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 10 == 0: print(f'step {step} loss {loss.item():.4f}', flush=True)
        step += 1

def main():
    model = Decoder().to(dev, torch.float32 if cpu else torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train(model, opt, 12)
    print('ONSET', flush=True)
    print('validated on %d references, %.4f right' % validate(model), flush=True)
    train(model, opt, 60)

if __name__ == '__main__':
    main()
