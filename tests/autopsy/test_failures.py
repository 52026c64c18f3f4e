"""What an end is called: the words that Python, torch, CUDA, NCCL, the kernel and schedulers print."""

import pytest

from perfwatch.failures import FAILURES, NAMES, forms, named
from perfwatch.report.explanation import end_page
from perfwatch.triage.rules import RULES

# By name, lines as they are printed.
SAID = {
    "ecc_error": (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:1b:00): 48, pid=4242, name=python, DBE (double bit error) ECC",
    ),
    "lost_gpu": (
        "amdgpu 0000:0a:00.0: Unable to change power state from D3hot to D0, device inaccessible",
        "NVRM: Xid (PCI:0000:b1:00): 79, pid='<unknown>', GPU has fallen off the bus.",),
    "xid_error": (
        "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=12, emitted seq=14",
        "NVRM: Xid (PCI:0000:1b:00): 74, NVLink: fatal error detected on link 2",),
    "cuda_out_of_memory": (
        "THCudaCheck FAIL file=/w/THCStorage.cu line=58 error=2 : out of memory",
        "RuntimeError: Could not allocate tensor with 8 bytes. There is not enough GPU video memory available!",
        "RuntimeError: Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "AllocateNewRegion(): Failed to allocate a memory region of 8388608 bytes. CUDA error: 'out of memory'",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.",
        "RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible.",
        "OSError: (External) CUDA error(2), out of memory.",
        "GPUassert: out of memory marian-dev/src/tensors/device_gpu.cu 32",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
        "RuntimeError: CUDA error: out of memory",
    ),
    "resource_limit": (
        "CPU time limit exceeded (core dumped)",
        "OSError: [Errno 27] File too large",
        "OSError: [Errno 24] Too many open files: '/data/shard-7'",
        "RuntimeError: received 0 items of ancdata",
        "RuntimeError: can't start new thread",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource temporarily unavailable",
    ),
    "shared_memory_full": (
        "ray.exceptions.ObjectStoreFullError: Failed to put object 00ff in object store because it is full.",
        "[3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: unable to write to file </torch_88_3141_0>: No space left on device (28)",
    ),
    "cgroup_out_of_memory": (
        "Container killed by YARN for exceeding memory limits. 12.0 GB of 12 GB physical memory used",
        "srun: error: node-7: tasks 1-3: Out Of Memory",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        "Memory cgroup out of memory: Killed process 812 (python) total-vm:91234kB, anon-rss:812kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch. Some of the step tasks have been OOM Killed.",
        "      Reason:       OOMKilled",
    ),
    "oom_killer": (
        "Out of memory: Killed process 31337 (python3) total-vm:210453396kB, anon-rss:190453396kB",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "python invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    ),
    "host_memory_refused": (
        "OSError: [WinError 1455] The paging file is too small for this operation to complete.",
        "java.lang.OutOfMemoryError: Java heap space",
        "ResourceExhaustedError: OOM when allocating tensor with shape[9,512] and type float on /job:a/device:CPU:0 by allocator mklcpu",
        "MemoryError",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    "data_timeout": (
        "Worker timed out after 120 seconds. This might be caused by",
        "multiprocessing.context.TimeoutError",
        "RuntimeError: DataLoader timed out after 30 seconds",),
    "time_limit": (
        "MOAB_INFO:  job exceeded wallclock limit",
        "ERROR:RetryJob Not retrying job due to wall clock limit",
        "submitit.core.utils.UncompletedJobError: Job not requeued because: timed-out and not checkpointable.",
        "Caught signal SIGUSR2 on gpu3: this job is timed-out.",
        "=>> PBS: job killed: walltime 3610 exceeded limit 3600", "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "slurmstepd: error: *** JOB 77 ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO TIME LIMIT ***",),
    "preempted": (
        "GCP Metadata Service says termination is imminent",
        "Caught signal SIGUSR2 on gpu3: this job is preempted.",
        "slurmstepd: error: *** STEP 608.0 ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO JOB REQUEUE ***",
        "slurmstepd: error: *** JOB 77 ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO PREEMPTION ***",),
    "node_failure": (
        "=>> PBS: job killed: node 2 (n34) requested job terminate, 'EOF' (code 1099)",
        "Message: The node was low on resource: memory.",
        "  Reason:       Evicted",
        "The actor is dead because its node has died. Node Id: 8f1b",
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.",
        "slurmstepd: error: *** JOB 77 ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO NODE FAILURE ***",),
    "quota_exceeded": ("OSError: [Errno 122] Disk quota exceeded: '/home/ann/ckpt.pt'",),
    "disk_full": (
        "OSError: [WinError 112] Es steht nicht genug Speicherplatz auf dem Datentr\u00e4ger zur Verf\u00fcgung",
        "Message: The node was low on resource: ephemeral-storage. Container trainer was using 73712Ki.",
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
        'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi"',
        "OSError: [Errno 28] No space left on device",
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598",
    ),
    "storage_error": (
        "RuntimeError: write(): fd 29 failed with Input/output error",
        "OSError: [Errno 116] Stale file handle: '/mnt/data/shard-7'", "OSError: [Errno 5] Input/output error"),
    "cuda_assert": (
        "C:/w/c10/core/DynamicCast.h:78: block: [38,0,0], thread: [96,0,0] Assertion `false` failed.",
        "RuntimeError: CUDA error: device-side assert triggered",
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [7,0,0] "
        "Assertion `t >= 0 && t < n_classes` failed.",
    ),
    "cuda_illegal_access": (
        "PhysX error: Fetching GPU Narrowphase failed! 700",
        "[TRT] Cuda failure: 700",
        "cuEventRecord failed with error 719",
        "Memory access fault by GPU node-1 (Agent handle: 0x561401550ed0) on address 0x7f8942626000. Reason: Page not present.",
        "OSError: (External) CUDA error(719), unspecified launch failure.",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python, Ch 00000008, MMU Fault",
    ),
    "unsupported_gpu": (
        "ValueError: fp16 mixed precision requires a GPU (not 'mps').",
        "RuntimeError: No HIP GPUs are available",
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "AssertionError: Torch not compiled with CUDA enabled",
    ),
    "rendezvous_timeout": (
        "RuntimeError: The client socket has failed to connect to any network address of (node1, 29500).",
        "RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/pair.cc:611] Connect timeout [10.0.0.13]:27023",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
    ),
    "address_in_use": (
        "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use). EADDRINUSE",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    "unreachable_service": (
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub",
        "OSError: [Errno 101] Network is unreachable",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub.example', port=443): Max retries exceeded with url: /api",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.example/x: Service Unavailable",
        "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: \"https://s3.example/x\"",
        "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(10 bytes read, 90 more expected)')",
        "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    "nccl_timeout": (
        "[PG 0 Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
        "RuntimeError: [gloo/transport/tcp/pair.cc:598] Application timeout caused pair closure",
        "EI0002: The wait execution of the Notify register times out.",
        "Termination timeout for `all-reduce` of 40 seconds exceeded. Exiting to ensure a consistent program state.",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, Timeout(ms)=600000) "
        "ran for 600012 milliseconds before timing out.",
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels",
        "Terminating the process after attempting to dump debug info, due to collective timeout or exception.",
    ),
    "nccl_error": (
        "2026:11:29-10:00:00:( 12) |CCL_ERROR| exchange_utils.cpp:202 sendmsg_fd: condition failed",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/ProcessGroupNCCL.cpp:2005, unhandled system error",
        "[2] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<41000> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
    "lost_peer": (
        "AbortedError (see above for traceback): Horovod has been shut down. This has been caused by an exception on one of the rank",
        "ConnectionResetError: [WinError 10054] An existing connection was forcibly closed by the remote host",
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:3",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:41214",),
    "dead_data_worker": (
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 4242, 4243) exited unexpectedly",
        '  File "/opt/lib/python3.12/site-packages/torch/utils/data/dataloader.py", line 1291, in _try_get_data',
    ),
    "crashed_data_worker": (
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Segmentation fault. ",
        "ERROR: Unexpected segmentation fault encountered in worker.",
    ),
    "failed_diagnostic": ("dcgmi diag: GPU 3: Memory: Fail - GPU: 3",),
    "machine_check": (
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
        "Kernel panic - not syncing: Fatal hardware error!",
    ),
    "hung_task": (
        "INFO: task python:4242 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:4242]",
    ),
    "segmentation_fault": (
        "segmentation fault (core dumped)",
        "Windows fatal exception: access violation",
        "zsh: segmentation fault  python train.py",
        "段错误 (核心已转储)",
        "*** SIGSEGV (@0x110) received by PID 14665 (TID 0x70000c5f3000) stack trace: ***",
        "subprocess.CalledProcessError: Command '['python.exe', 'a.py']' returned non-zero exit status 3221225477.",
        "Process finished with exit code -1073741819 (0xC0000005)",
        "Fatal Python error: Segmentation fault",
        "python[4242]: segfault at 0 ip 00007f3a1c2b3d4e sp 00007ffc5e6f7a80 error 4 in libfoo.so[7f3a1c200000+e0000]",
    ),
    "bus_error": (
        "Signal 7 (SIGBUS) received by PID 4242",
        "['/opt/bin/python', '-u', 'main.py', '--local_rank=3'] exits with return code = -7",
    ),
    "illegal_instruction": (
        "Process finished with exit code -1073741795 (0xC000001D)",
        "Illegal instruction (core dumped)",),
    "checkpoint_mismatch": (
        "RuntimeError: Keys 'trunk.ipa.linear_q_points.weight, trunk.ipa.linear_kv_points.bias' are missing.",
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "_pickle.UnpicklingError: invalid load key, '<'.",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
    ),
    "device_mismatch": (
        'dgl._ffi.base.DGLError: Cannot assign node feature "h" on device cuda:0 to a graph on device cpu.',
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!",
        "RuntimeError: Tensor on device cpu is not on the expected device meta!",
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    ),
    "dtype_mismatch": (
        "RuntimeError: expected dtype Float for `weights` but got dtype Half",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half",
        "RuntimeError: expected scalar type Half but found Float",
        "RuntimeError: FlashAttention only support fp16 and bf16 data type",
        "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'",
    ),
    "shape_mismatch": (
        "RuntimeError: Size mismatch",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Incompatible shapes: [32,10] vs. [32,11]",
        "TypeError: dot_general requires contracting dimensions to have the same shape, got (32,) and (64,).",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x128 and 64x10)",
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
        "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 4 but got size 5 for tensor number 1",
        "ValueError: Expected input batch_size (32) to match target batch_size (16).",
        "RuntimeError: [2]: params[0] in this process with sizes [10, 4] appears not to match sizes of the same param in process 0.",
        "RuntimeError: einsum(): subscript j has size 64 for operand 1 which does not broadcast with previously seen size 32",
    ),
    "nan_guard": (
        "torch._C._LinAlgError: linalg.svd: the input matrix contained non-finite values.",
        "===ERROR: in [op=matmul_grad] [tensor=softmax_34.tmp_0.cast_fp16@GRAD] find nan or inf===",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "ValueError: The loss returned in `training_step` is nan.",
        "AssertionError: found NaN in local grad norm in backward pass before data-parallel communication collective.",
        "FloatingPointError: non-finite loss at step 31",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0",
        "FloatingPointError: Minimum loss scale reached (0.0001). Loss is infinite or NaN",
        "step 812 loss: nan",
    ),
    "compile_error": (
        "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl",
        "torch.fx.experimental.symbolic_shapes.ConstraintViolationError: Constraints violated",
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/main.c', '-O3']' returned non-zero exit status 1.",
        "CalledProcessError: Command '['C:\\\\mingw64\\\\bin\\\\gcc.EXE', 'main.c']' returned non-zero exit status 1.",
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print)",
        "torch._inductor.exc.InductorError: LoweringException: AssertionError: ",
        "RuntimeError: Error building extension 'fused_adam'",
        "triton.compiler.errors.CompilationError: at 12:8:",
    ),
    "cuda_error": (
        "RuntimeError: Native API failed. Native API returns: -999 (UNKNOWN PI error)",
        "ERR01005 OPS internal error",
        "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        "PhysX error: GPU kernel 'bpSignalComplete' failed to launch with error 400!!",
        "cuStreamSynchronize failed with error 999",
        "RuntimeError: HIP error: invalid argument",
        "XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed.",
        "RuntimeError: npuSynchronizeDevice:NPUStream.cpp:370 NPU error, error code is 107020.",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: CUDA error: unknown error"),
    "missing_module": (
        "OSError: [WinError 126] Das angegebene Modul wurde nicht gefunden",
        "exit code -1073741515 (0xC0000135)",
        "ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by flash_attn_2_cuda.so)",
        "ModuleNotFoundError: No module named 'apex'",
        "RuntimeError: Failed to import transformers.models.llama because of the following error (look up to see its traceback):",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    ),
    "permission_denied": (
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation",
        "403 Forbidden: You have read access but not the required permissions for this operation.",
        "tensorflow.python.framework.errors_impl.PermissionDeniedError: /logs/train; Permission denied",
        "google.api_core.exceptions.PermissionDenied: 403 no access",
        "PermissionError: [Errno 13] Permission denied: '/data/out'", "bash: ./train.sh: Permission denied",
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation: Access Denied",
        "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: 66)",
    ),
    "missing_file": (
        "google.api_core.exceptions.NotFound: 404 GET https://example.com/x: not found",
        "tensorflow.python.framework.errors_impl.NotFoundError: /data/x.tfrecord; No such file or directory",
        "OSError: Can't load tokenizer for 'x/y'. If you were trying to load it from the Hub, make sure the name is right",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: 66)",
        "python: can't open file '/srv/train.py': [Errno 2] No such file or directory",
    ),
    "division_by_zero": ("ZeroDivisionError: float division by zero",),
    "failed_assertion": (
        "dgl._ffi.base.DGLError: [11:31:02] /opt/dgl/src/runtime/workspace_pool.cc:100: Check failed: allocated_.size() == 1 (2 vs. 1)",
        "AssertionError: world size must be even",
        "AssertionError"),
    "interrupted": (
        "Job deleted at request of root@gpc-sched",
        "KeyboardInterrupt", "slurmstepd: error: *** STEP 77.0 ON node-3 CANCELLED AT 2026-11-29T10:00:01 ***"),
    "terminated": (
        "20% (117/558) [#  ] eta 28:34:54 \\Terminated",
        "zsh: terminated  python train.py",
        "12%|#2        | 120/1000 [02:01<14:50,  1.01s/it]Terminated",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 41 got signal: 15",
        "Terminated",
        "lightning.fabric.utilities.exceptions.SIGTERMException",
    ),
    "sigkill": (
        "        exitCode: 137",
        "The replica workerpool0-0 exited with a non-zero status of 137.",
        "zsh: killed     python train.py",
        "[1]  + 12345 killed     python train.py",
        "已杀死",
        "_job_complete: JobId=127441 WTERMSIG 9",
        "Epoch 3:  12%|#2        | 120/1000 [02:01<14:50,  1.01s/it]Killed",
        "srun: error: node-7: task 3: Killed",
        "trainer-1 exited with code 137",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 4242) of binary: python",
        "Killed", "./run.sh: line 3:  4242 Killed                  python train.py", "Signal 9 (SIGKILL) received by PID 4242"),
    "abort": (
        "Abort trap: 6",
        "free(): double free detected in tcache 2",
        "OMP: Error #15: Initializing libiomp5md.dll, but found libiomp5 already initialized.",
        "Process finished with exit code -1073740791 (0xC0000409)",
        "terminate called after throwing an instance of 'c10::Error'", "Signal 6 (SIGABRT) received by PID 4242"),
    "failed_child": (
        "The kernel appears to have died. It will restart automatically.",
        "Some workers have not registered. The process is dead, probably it crashed during start.",
        "sagemaker-containers ERROR    ExecuteUserScriptError:",
        "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'gcc.py']' returned non-zero exit status 1.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "srun: error: node-3: task 5: Exited with exit code 1",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "A worker died or was killed while executing a task by an unexpected system error. There are some potential root causes. "
        "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (3) crashed due to SIGSEGV",
    ),
    "runtime_error": ("RuntimeError: Trying to backward through the graph a second time",),
    "python_exception": (
        "torch._C._LinAlgError: linalg.cholesky: the input is not positive-definite",
        "torchrun: error: the following arguments are required: training_script",
        "zlib.error: Error -3 while decompressing data",
        "Exception: something else", "KeyError: 'lr'", "flax.errors.ScopeParamNotFound: x",
        "subprocess.TimeoutExpired: Command 'x' timed out after 5 seconds",
        "botocore.exceptions.ClientError: An error occurred (ValidationError)",
    ),
}  # fmt: skip
NO_ENDS = (
    "CUDA is not available, the CPU is used",
    "this model requires a GPU of 24 GB to be fast",
    '    "OOMKilled": false,',
    "profiled wall clock 12.1 s, wall time 13.0 s",
    "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
    "exitCode: 0",
    "the spot check was reclaimed by nobody",
    "saved in memory limited to 8 GB",
    "restarting dataloader workers, block: [3,0], thread: [2]",
    "API token accepted, logged in",
    "killed 3 of 40 beams",
    "device is accessible",
    "[1] 12345 samples killed by the filter",
    "node-7:41:88 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "this job is not timed out yet, 20 min are left",
    "ephemeral port range: 32768 60999",
    "tensorflow.python.framework.errors_impl.CancelledError: Enqueue operation was cancelled",
    "GPU worker failed 700 requests, all were served again",
    "GPU error rate: 3",
    "cuda cache: failed 400/900 lookups",
    "Skipping tfevents export: No module named 'tensorboard'",
    "threw in void gpuAssert(cudaError_t, const char*, int, bool)",
    "this may lead to a CUDA out of memory error",
    "signal handler for SIGTERM installed",
    "Some checkpoint files will be Killed in 3 days",
    "Timeout: 600",
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


def test_each_end_says_what_it_is_mistaken_for() -> None:
    """In the page that explain prints, with whether to start it again."""
    assert all(f"What it is mistaken for\n\n{one.alike[:9]}".lower() in end_page(one).lower() for one in NAMES.values())
    assert all(f"Retry\n\n{one.retry}: " in end_page(one) for one in NAMES.values())


def test_each_end_is_a_form_of_a_cause_with_a_page() -> None:
    """So explain finds it, and the table of the README has it."""
    also = {form for rule in RULES for form in rule.cause.also}

    assert set(NAMES) <= also
    assert {one.retry for one in FAILURES} == {"yes", "no", "after fixing"}
    assert set(forms("crashed")) < set(NAMES)


def test_a_long_line_takes_no_time() -> None:
    """Every pattern is bounded, and so is what is read of a line."""
    assert named("Expected " * 300_000) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("exit code -1", None),
        ("server returned code: -3", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/nan-filter/train.bin'", "missing_file"),
        ("PermissionError: [Errno 13] Permission denied: '/data/inf-cache'", "permission_denied"),
        ("ModuleNotFoundError: No module named 'inf-utils'", "missing_module"),
        ("BlockingIOError: [Errno 35] Resource temporarily unavailable", "python_exception"),
    ],
)
def test_a_number_or_a_name_that_only_looks_like_that_of_an_end_is_not_taken_for_it(
    line: str, name: str | None
) -> None:
    """Programs return -1, folders are called after what they hold, and error numbers differ from system to system."""
    found = named(line)

    assert (found and found.name) == name
