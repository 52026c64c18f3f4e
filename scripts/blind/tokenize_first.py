"""FIELD
source: JIA-Lab-research/LongLoRA#45, axolotl#2684, huggingface/transformers#12345 (rank 0 prepares the data, the others wait in a barrier)
mechanism: at the start rank 0 tokenises the corpus for about seven minutes while the other ranks wait in the barrier; then all train
needs: cpu
ranks: 3
onset: printed
state: busy
cause: computing_on_host, starting, waiting_on_work
blame: tokenise (tokenize_first.py)
twin: none
"""
import array, collections, contextlib, datetime, os, random, re, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist

torch.set_num_threads(1)
WORD = re.compile(r"\w+|[^\w\s]")
PREPARE = 420               # seconds of corpus


@contextlib.contextmanager
def main_process_first():
    if dist.get_rank() > 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


def documents(seconds):
    rng = random.Random(0)
    stems = [''.join(rng.choices('abcdefghijklmnop', k=rng.randint(2, 9))) for _ in range(4000)]
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        yield ' '.join(rng.choices(stems, k=400)) + '.'


def pieces(word, merges):
    parts = list(word)
    while len(parts) > 1:
        pair = max(zip(parts, parts[1:]), key=lambda p: merges.get(p, 0))
        if merges.get(pair, 0) < 20:
            break
        k = list(zip(parts, parts[1:])).index(pair)
        parts[k:k + 2] = [pair[0] + pair[1]]
    return parts


def tokenise(path, seconds):
    merges, ids = collections.Counter(), {}
    with open(path + '.tmp', 'wb') as out:
        for n, text in enumerate(documents(seconds)):
            row = array.array('i')
            for word in WORD.findall(text):
                merges.update(zip(word, word[1:]))
                for piece in pieces(word, merges):
                    row.append(ids.setdefault(piece, len(ids)))
            if n < 5000:
                row.tofile(out)
            if n % 200 == 0:
                print(f'tokenised {n} documents, {len(ids)} pieces', flush=True)
    os.replace(path + '.tmp', path)


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    path = os.path.join(tempfile.gettempdir(), f'tokenize_first-{os.getppid()}.bin')
    with main_process_first():
        if not os.path.exists(path):
            print('preparing the corpus\nONSET', flush=True)
            tokenise(path, PREPARE)
    tokens = torch.from_file(path, dtype=torch.int32, size=os.path.getsize(path) // 4).long()
    torch.manual_seed(0)
    size = int(tokens.max()) + 1
    model = nn.Sequential(nn.Embedding(size, 64), nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, size))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for step in range(300):
        at = torch.randint(0, len(tokens) - 9, (64, 1)) + torch.arange(9)
        loss = nn.functional.cross_entropy(model(tokens[at[:, :8]]), tokens[at[:, 8]])
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
        if step % 50 == 0 and rank == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
    dist.barrier()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
