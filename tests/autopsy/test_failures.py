"""What an end is called: the words that Python, torch, CUDA, NCCL, the kernel and schedulers print."""

import pytest

from perfwatch.failures import FAILURES, NAMES, forms, named
from perfwatch.triage.rules import RULES

# By name, lines as they are printed.
SAID = {
    "ecc_error": (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:1b:00): 48, pid=4242, name=python, DBE (double bit error) ECC",
    ),
    "lost_gpu": ("NVRM: Xid (PCI:0000:b1:00): 79, pid='<unknown>', GPU has fallen off the bus.",),
    "xid_error": ("NVRM: Xid (PCI:0000:1b:00): 74, NVLink: fatal error detected on link 2",),
    "cuda_out_of_memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
        "RuntimeError: CUDA error: out of memory",
    ),
    "shared_memory_full": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: unable to write to file </torch_88_3141_0>: No space left on device (28)",
    ),
    "cgroup_out_of_memory": (
        "srun: error: node-7: tasks 1-3: Out Of Memory",
        "Memory cgroup out of memory: Killed process 812 (python) total-vm:91234kB, anon-rss:812kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch. Some of the step tasks have been OOM Killed.",
        "      Reason:       OOMKilled",
    ),
    "oom_killer": (
        "Out of memory: Killed process 31337 (python3) total-vm:210453396kB, anon-rss:190453396kB",
        "python invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    ),
    "host_memory_refused": (
        "MemoryError",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    "time_limit": ("slurmstepd: error: *** JOB 77 ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO TIME LIMIT ***",),
    "preempted": ("slurmstepd: error: *** JOB 77 ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO PREEMPTION ***",),
    "node_failure": ("slurmstepd: error: *** JOB 77 ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO NODE FAILURE ***",),
    "quota_exceeded": ("OSError: [Errno 122] Disk quota exceeded: '/home/ann/ckpt.pt'",),
    "disk_full": ("OSError: [Errno 28] No space left on device",),
    "storage_error": ("OSError: [Errno 116] Stale file handle: '/mnt/data/shard-7'", "OSError: [Errno 5] Input/output error"),
    "cuda_assert": (
        "RuntimeError: CUDA error: device-side assert triggered",
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [7,0,0] "
        "Assertion `t >= 0 && t < n_classes` failed.",
    ),
    "cuda_illegal_access": (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python, Ch 00000008, MMU Fault",
    ),
    "unsupported_gpu": (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: No CUDA GPUs are available",
        "AssertionError: Torch not compiled with CUDA enabled",
    ),
    "rendezvous_timeout": (
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
    ),
    "address_in_use": (
        "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use). EADDRINUSE",
    ),
    "unreachable_service": (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub.example', port=443): Max retries exceeded with url: /api",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    "nccl_timeout": (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, Timeout(ms)=600000) "
        "ran for 600012 milliseconds before timing out.",
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels",
    ),
    "nccl_error": (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/ProcessGroupNCCL.cpp:2005, unhandled system error",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
    "lost_peer": ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:41214",),
    "dead_data_worker": (
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 4242, 4243) exited unexpectedly",
    ),
    "segmentation_fault": (
        "Fatal Python error: Segmentation fault",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Segmentation fault. ",
        "python[4242]: segfault at 0 ip 00007f3a1c2b3d4e sp 00007ffc5e6f7a80 error 4 in libfoo.so[7f3a1c200000+e0000]",
    ),
    "bus_error": ("Signal 7 (SIGBUS) received by PID 4242",),
    "illegal_instruction": ("Illegal instruction (core dumped)",),
    "checkpoint_mismatch": (
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "_pickle.UnpicklingError: invalid load key, '<'.",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
    ),
    "device_mismatch": (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!",
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    ),
    "dtype_mismatch": (
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half",
        "RuntimeError: expected scalar type Half but found Float",
        "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'",
    ),
    "shape_mismatch": (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x128 and 64x10)",
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
        "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 4 but got size 5 for tensor number 1",
        "ValueError: Expected input batch_size (32) to match target batch_size (16).",
    ),
    "nan_guard": (
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "ValueError: The loss returned in `training_step` is nan.",
        "AssertionError: found NaN in local grad norm in backward pass before data-parallel communication collective.",
        "FloatingPointError: Minimum loss scale reached (0.0001). Loss is infinite or NaN",
        "step 812 loss: nan",
    ),
    "compile_error": (
        "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print)",
        "torch._inductor.exc.InductorError: LoweringException: AssertionError: ",
        "RuntimeError: Error building extension 'fused_adam'",
        "triton.compiler.errors.CompilationError: at 12:8:",
    ),
    "cuda_error": ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "RuntimeError: CUDA error: unknown error"),
    "missing_module": (
        "ModuleNotFoundError: No module named 'apex'",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    ),
    "permission_denied": ("PermissionError: [Errno 13] Permission denied: '/data/out'", "bash: ./train.sh: Permission denied"),
    "missing_file": (
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "python: can't open file '/srv/train.py': [Errno 2] No such file or directory",
    ),
    "division_by_zero": ("ZeroDivisionError: float division by zero",),
    "failed_assertion": ("AssertionError: world size must be even", "AssertionError"),
    "interrupted": ("KeyboardInterrupt", "slurmstepd: error: *** STEP 77.0 ON node-3 CANCELLED AT 2026-11-29T10:00:01 ***"),
    "terminated": ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 41 got signal: 15", "Terminated"),
    "sigkill": (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 4242) of binary: python",
        "Killed", "./run.sh: line 3:  4242 Killed                  python train.py", "Signal 9 (SIGKILL) received by PID 4242"),
    "abort": ("terminate called after throwing an instance of 'c10::Error'", "Signal 6 (SIGABRT) received by PID 4242"),
    "failed_child": (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "srun: error: node-3: task 5: Exited with exit code 1",
    ),
    "runtime_error": ("RuntimeError: Trying to backward through the graph a second time",),
    "python_exception": (
        "Exception: something else","KeyError: 'lr'", "botocore.exceptions.ClientError: An error occurred (403)"),
}  # fmt: skip
NO_ENDS = (
    "UserWarning: NVIDIA H100 with CUDA capability sm_90 is not compatible with the current PyTorch installation.",
    "INFO:root:step 12 loss 3.20 information",
    "WARNING: connection error, retrying in 5 s (attempt 2/5)",
    "epoch 3: error rate 0.12, killed 0 samples",
    "loading module infer.py, inference on device cuda:0",
    "saved checkpoint to /ckpt/step_100 (no errors)",
    "val_error: 0.031",
    "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 4242 closing signal SIGTERM",
)


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in SAID.items() for line in lines])
def test_an_end_is_called_by_what_is_printed(name: str, line: str) -> None:
    """Each line as its source prints it."""
    failure = named(line)

    assert failure is not None
    assert failure.name == name


@pytest.mark.parametrize("line", NO_ENDS)
def test_what_is_no_end_has_no_name(line: str) -> None:
    """Warnings, tries that are made again, figures."""
    assert named(line) is None


def test_each_end_has_an_example() -> None:
    """A name that nothing shows is not needed."""
    assert set(SAID) == set(NAMES)


def test_each_end_is_a_form_of_a_cause_with_a_page() -> None:
    """So explain finds it, and the table of the README has it."""
    also = {form for rule in RULES for form in rule.cause.also}

    assert set(NAMES) <= also
    assert {one.retry for one in FAILURES} == {"yes", "no", "after fixing"}
    assert set(forms("crashed")) < set(NAMES)


def test_a_long_line_takes_no_time() -> None:
    """Every pattern is bounded, and so is what is read of a line."""
    assert named("Expected " * 300_000) is None
