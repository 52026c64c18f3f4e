"""FIELD
source: own (a feature store that is gone, with retries before the fallback to the local copy)
mechanism: rank 1 asks a feature store on a closed port for each batch, is refused four times with growing pauses and then takes its local copy; rank 0 waits for it in the all-reduce
needs: cpu
ranks: 2
onset: printed
state: slow
cause: retrying, straggling_rank, starved_by_network
blame: rank 1
twin: none
"""
import datetime, json, socket, threading, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


class Store:
    """Serves the mean of a batch of features, until it is closed."""
    def __init__(self):
        self.socket = socket.create_server(('127.0.0.1', 0))
        self.port = self.socket.getsockname()[1]
        self.open = True
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while self.open:
            peer, _ = self.socket.accept()
            with peer:
                if self.open:
                    peer.sendall(json.dumps({'offset': 0.5}).encode())
        self.socket.close()

    def close(self):
        self.open = False
        socket.create_connection(('127.0.0.1', self.port)).close()


class Client:
    def __init__(self, port):
        self.port = port

    def ask(self):
        with socket.create_connection(('127.0.0.1', self.port), timeout=5) as conn:
            return json.loads(conn.makefile().read())['offset']

    def offset(self, attempts=4):
        for attempt in range(attempts):
            try:
                return self.ask()
            except OSError:
                time.sleep(0.1 * 2 ** attempt)
        return 0.5


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    store = Store()
    client = Client(store.port)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(1000000):
        if step == 250 and rank == 1:
            store.close()
            print('ONSET', flush=True)
        x = torch.randn(128, 128) + client.offset()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 10)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            if rank == 0:
                print(f'step {step} loss {loss.item():.4f}', flush=True)
            over = torch.tensor(float(time.monotonic() - begun > 700))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
