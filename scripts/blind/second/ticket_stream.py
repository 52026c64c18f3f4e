"""FIELD
source: https://github.com/sgl-project/sglang/pull/14214 (streams that wait for a value in memory instead of an event, "where the record happens later than the wait")
mechanism: the compute stream waits for a ticket number in device memory (cuStreamWaitValue32); from the second epoch on the loader stream counts from one again, the number never comes, and the host waits for the stream
needs: gpu
ranks: 1
onset: printed
state: hung
cause: stuck_kernel
blame: none
twin: none
"""
import ctypes, os, threading, time
import torch, torch.nn as nn

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
WIDTH, BATCH, EPOCH_STEPS, SLOTS = (128, 32, 300, 4) if cpu else (8192, 8192, 700, 4)
GEQ = 0

class DeviceTickets:
    """A counter in device memory that one stream writes and another waits for, without the host."""
    def __init__(self):
        self.word = torch.zeros(1, dtype=torch.int32, device=dev)
        torch.cuda.synchronize()
        self.lib = ctypes.CDLL('libcuda.so.1')
        for f in (self.lib.cuStreamWaitValue32_v2, self.lib.cuStreamWriteValue32_v2):
            f.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
            f.restype = ctypes.c_int

    def publish(self, number, stream):
        code = self.lib.cuStreamWriteValue32_v2(stream.cuda_stream, self.word.data_ptr(), number, 0)
        assert code == 0, f'cuStreamWriteValue32: {code}'

    def require(self, number, stream):
        code = self.lib.cuStreamWaitValue32_v2(stream.cuda_stream, self.word.data_ptr(), number, GEQ)
        assert code == 0, f'cuStreamWaitValue32: {code}'

class HostTickets:
    def __init__(self):
        self.number, self.changed = 0, threading.Condition()
    def publish(self, number, stream):
        with self.changed:
            self.number = number
            self.changed.notify_all()
    def require(self, number, stream):
        with self.changed:
            self.changed.wait_for(lambda: self.number >= number)

def main():
    tickets = HostTickets() if cpu else DeviceTickets()
    loading, computing = (None, None) if cpu else (torch.cuda.Stream(), torch.cuda.Stream())
    scope = torch.cuda.stream
    dtype = torch.float32 if cpu else torch.bfloat16
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(dev, dtype)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    slots = [torch.empty(BATCH, WIDTH, device=dev, dtype=dtype) for _ in range(SLOTS)]
    if not cpu: torch.cuda.synchronize()
    wanted = 0
    for epoch in range(1000):
        if epoch == 1: print('ONSET', flush=True)
        for step in range(EPOCH_STEPS):
            wanted += 1
            with scope(loading):
                slots[step % SLOTS].normal_()
                tickets.publish(step + 1, loading)
            with scope(computing):
                tickets.require(wanted, computing)
                x = slots[step % SLOTS]
                loss = (model(x) - x).float().pow(2).mean()
                opt.zero_grad(); loss.backward(); opt.step()
                if step % 20 == 19:
                    print(f'epoch {epoch} step {step} loss {loss.item():.4f}', flush=True)

if __name__ == '__main__':
    main()
