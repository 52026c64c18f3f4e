"""FIELD
source: https://github.com/huggingface/pytorch-image-models/issues/1262 and https://github.com/tenstorrent/tt-studio/issues/721 (pretrained weights arrive very slowly and it is unclear whether something goes wrong)
mechanism: after the head is trained, the weights of the second stage are fetched over HTTP at some 250 KB/s; bytes arrive all the time, for more than five minutes
needs: cpu
ranks: 1
onset: printed
state: busy
cause: downloading
blame: none
twin: none
"""
import http.server, io, multiprocessing as mp, os, shutil, tempfile, time, urllib.request
import torch, torch.nn as nn

SIZE, RATE = 2300, 250_000              # 2300 x 2300 x 4 x 4 bytes in some 340 s

def build_backbone():
    return nn.Sequential(*[nn.Linear(SIZE, SIZE, bias=False) for _ in range(4)])

class ModelStore(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        buf = io.BytesIO()
        torch.save(build_backbone().state_dict(), buf)
        body = buf.getvalue()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        for at in range(0, len(body), RATE // 10):
            self.wfile.write(body[at:at + RATE // 10])
            time.sleep(0.1)
    def log_message(self, *args):
        pass

def mirror(port):
    torch.set_num_threads(1)
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), ModelStore)
    port.send(server.server_address[1])
    server.serve_forever()

def fetch(url, path):
    with urllib.request.urlopen(url) as src, open(path + '.part', 'wb') as dst:
        while chunk := src.read(1 << 16):
            dst.write(chunk)
    os.replace(path + '.part', path)

def fit(module, width, seconds, name):
    opt = torch.optim.SGD(module.parameters(), lr=1e-3)
    until, step = time.time() + seconds, 0
    while time.time() < until:
        x = torch.randn(16, width)
        loss = (module(x) - x.flip(1)[:, :module(x).shape[1]]).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 50 == 0:
            print(f'{name} step {step} loss {loss.item():.4f}', flush=True)
        step += 1

def main():
    torch.set_num_threads(1)
    here, there = mp.Pipe(False)
    server = mp.get_context('spawn').Process(target=mirror, args=(there,), daemon=True)
    server.start()
    port = here.recv()
    cache = tempfile.mkdtemp(prefix='hub_')
    try:
        fit(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)), 256, 10, 'head')
        print('ONSET', flush=True)
        weights = os.path.join(cache, 'backbone.pt')
        fetch(f'http://127.0.0.1:{port}/v2/backbone.pt', weights)
        backbone = build_backbone()
        backbone.load_state_dict(torch.load(weights, weights_only=True))
        fit(backbone, SIZE, 40, 'backbone')
    finally:
        shutil.rmtree(cache)

if __name__ == '__main__':
    main()
