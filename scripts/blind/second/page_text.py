"""FIELD
source: https://github.com/OpenNyAI/Opennyai/issues/16 (a regular expression that backtracks without end, inside the C matcher, with the GIL held)
mechanism: the prefetching thread matches a nested quantifier against a long heading in capitals; the matcher never returns and never gives up the GIL, and the training thread waits for the GIL
needs: cpu
ranks: 1
onset: printed
state: hung
cause: held_gil
blame: normalise (page_text.py)
twin: none
"""
import queue, re, threading, time
import torch, torch.nn as nn

torch.set_num_threads(1)
STATUTE = re.compile(r'([A-Z]+[a-z]{0,1}\.*\s*,*)*((A|a)(c|C)(t|T))*\s*')
HEADINGS = ['Income Tax Act', 'Evidence Act', 'Code of Civil Procedure', 'Companies Act', 'IPC', 'Cr.P.C', 'Arms Act', 'The Motor Vehicles Act']
SCANNED = 'THEPREVENTIONOFMONEYLAUNDERINGANDOFILLICITTRAFFICINNARCOTICDRUGSANDPSYCHOTROPICSUBSTANCES-1988'

def normalise(heading):
    if STATUTE.fullmatch(heading):
        heading = heading.replace('.', '').upper()
    return heading.lower()

def encode(text, width=48):
    codes = [ord(c) % 128 for c in text[:width]]
    return torch.tensor(codes + [0] * (width - len(codes)))

class Prefetcher(threading.Thread):
    def __init__(self, depth=8):
        super().__init__(daemon=True, name='prefetch')
        self.batches = queue.Queue(depth)

    def run(self):
        begun, n = time.time(), 0
        while True:
            names = [HEADINGS[(n + i) % len(HEADINGS)] for i in range(64)]
            if time.time() - begun > 10:
                names[-1] = SCANNED
                print('ONSET', flush=True)
            rows = torch.stack([encode(normalise(name)) for name in names])
            labels = torch.tensor([(n + i) % len(HEADINGS) for i in range(64)])
            self.batches.put((rows, labels))
            n += 64

def main():
    model = nn.Sequential(nn.Embedding(128, 32), nn.Flatten(), nn.Linear(48 * 32, 512), nn.ReLU(), nn.Linear(512, len(HEADINGS)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    feed = Prefetcher()
    feed.start()
    step = 0
    while True:
        rows, labels = feed.batches.get()
        loss = nn.functional.cross_entropy(model(rows), labels)
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 200 == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
        step += 1

if __name__ == '__main__':
    main()
