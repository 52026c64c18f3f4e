"""The names of ends: sub-causes of crashed, killed, out_of_memory and gpu_fault, by the words that a log says them with.

``FAILURES`` is the one table. A row is chosen by the first pattern that a line matches, so the order is from particular to general.
The words are those that Python, torch, CUDA, NCCL, the kernel, Slurm and Kubernetes print (their sources; torch 2.1 to 2.13, NCCL 2.18
to 2.29, CPython 3.8 to 3.14, Linux 3.10 to 6.18, Slurm 20 to 24, Kubernetes 1.24 to 1.33); a program's own words are in none of them.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

YES, NO, AFTER_FIXING = "yes", "no", "after fixing"

ORIGIN, PEER, ECHO = (
    0,
    1,
    2,
)  # an end of its own; what a rank says that lost or missed another one; what only repeats an end
LONGEST_LINE = 2000


@dataclass(frozen=True)
class Failure:
    """One sub-cause.

    retry: whether the same command may succeed when it is started again: yes, no, after fixing. weight: whose end it is (``ORIGIN``,
    ``PEER``, ``ECHO``). hint: True for a line that alone does not show an end.
    """

    name: str
    cause: str
    retry: str
    owner: str
    pattern: str
    means: str
    fix: str
    weight: int = ORIGIN
    hint: bool = False


_NODE = "start it again on another node; drain this one; nvidia-smi -q -d ECC,ROW_REMAPPER"
_RESUME = "start it again from its last checkpoint"
_PYTHON = "read the traceback, its last line first"

FAILURES = (
    # The card and its driver: what the program says afterwards follows from it.
    Failure(
        "ecc_error", "gpu_fault", YES, "gpu",
        r"uncorrectable ECC errors?|NVRM: Xid \([^)]*\): (?:48|63|64|94|95)\b|cudaErrorECCUncorrectable",
        "the GPU's memory has an uncorrectable error",
        _NODE,
    ),
    Failure(
        "lost_gpu", "gpu_fault", YES, "gpu",
        r"fallen off the bus|NVRM: Xid \([^)]*\): 79\b|GPU is lost|GPU requires reset|NVML_ERROR_GPU_IS_LOST|"
        r"Unable to determine the device handle",
        "the GPU has fallen off the bus",
        _NODE,
    ),
    Failure(
        "xid_error", "gpu_fault", YES, "gpu",
        r"NVRM: Xid \([^)]*\): (?:61|62|69|74|109|110|119|120|121|122|123|124|140|143|144|145|149|154)\b|SXid|"
        r"cudaErrorHardwareStackError|an NVLink error|NVSwitch.{0,40}fatal",
        "the driver announced an error of the GPU, its firmware or its links",
        _NODE,
    ),
    # Memory.
    Failure(
        "cuda_out_of_memory", "out_of_memory", AFTER_FIXING, "user_code",
        r"(?:CUDA|HIP|XPU) out of memory|(?:torch\.(?:cuda\.)?)?OutOfMemoryError\b|CUDA_ERROR_OUT_OF_MEMORY|"
        r"CUDA error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
        "the GPU has no memory left for what was asked",
        "a smaller micro-batch with gradient accumulation, or activation checkpointing",
    ),
    Failure(
        "shared_memory_full", "out_of_memory", AFTER_FIXING, "node",
        r"out of shared memory|insufficient shared memory \(shm\)|unable to (?:write to|open) file </torch_\w+>|"
        r"/dev/shm.{0,80}No space left|No space left on device.{0,80}/dev/shm|"
        r"Error while creating shared memory segment",
        "/dev/shm is full",
        "docker run --shm-size, or a larger emptyDir of medium Memory at /dev/shm; fewer DataLoader workers",
    ),
    Failure(
        "cgroup_out_of_memory", "out_of_memory", AFTER_FIXING, "user_code",
        r"Memory cgroup out of memory|cgroup out-of-memory handler|tasks? [\d,-]+: Out Of Memory|"
        r"oom[-_]kill event|\bOOMKilled\b|\bOUT_OF_ME(?:MORY)?\b|"
        r"Exceeded (?:job|step) memory limit|constraint=CONSTRAINT_MEMCG",
        "the kernel killed a process because its control group (a container, a Slurm job) was at its memory limit",
        "a higher memory limit, fewer DataLoader workers, or a smaller data set in memory",
    ),
    Failure(
        "oom_killer", "out_of_memory", AFTER_FIXING, "user_code",
        r"Out of memory: Kill(?:ed)? process|invoked oom-killer|oom-kill:constraint|"
        r"Killed process \d+[ ,].{0,60}total-vm|oom_reaper: reaped process|killed by (?:the )?(?:kernel )?OOM|"
        r"workers? .{0,60}killed due to memory pressure",
        "the kernel killed a process because the machine had no memory left",
        "fewer DataLoader workers, a smaller data set in memory, or a machine with more memory",
    ),
    Failure(
        "host_memory_refused", "out_of_memory", AFTER_FIXING, "user_code",
        r"^(?:\w+\.)*(?:_Array)?MemoryError\b|\bMemoryError(?::|$)|"
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory|"
        r"Unable to allocate [\d.]+ [KMGTP]iB",
        "the host refused memory that the program asked for",
        "ask for less at once; check ulimit -v and the memory limit of the container or the Slurm job",
    ),
    # Who ended it from outside.
    Failure(
        "time_limit", "killed", YES, "scheduler",
        r"DUE TO TIME LIMIT|\bDeadlineExceeded\b|State=TIMEOUT\b|\bTIMEOUT\b[ |]+\d+:\d+\b|"
        r"exceeded (?:its )?(?:wall ?time|time limit)",
        "the scheduler ended the job at its time limit",
        f"{_RESUME}, with a longer limit or more frequent checkpoints",
    ),
    Failure(
        "preempted", "killed", YES, "scheduler",
        r"DUE TO PREEMPTION|\bPREEMPTED\b|Preempted by|[Rr]eason: +(?:Preempted|Preempting|PreemptionByScheduler)|"
        r"DisruptionTarget|spot (?:instance )?interruption",
        "the scheduler took the machine for another job",
        _RESUME,
    ),
    Failure(
        "node_failure", "killed", YES, "node",
        r"DUE TO NODE FAILURE|\bNODE_FAIL\b|[Rr]eason: +(?:NodeLost|NodeShutdown|Evicted)|"
        r"The node was low on resource|DUE TO JOB REQUEUE|\bNodeNotReady\b",
        "the node failed or gave the job up",
        _RESUME,
    ),
    Failure(
        "quota_exceeded", "crashed", AFTER_FIXING, "storage",
        r"Disk quota exceeded|\bEDQUOT\b",
        "the disk quota of the user or group is used up",
        "delete files or ask for more quota; quota -s",
    ),
    Failure(
        "disk_full", "crashed", AFTER_FIXING, "storage",
        r"No space left on device|\bENOSPC\b|PytorchStreamWriter failed writing",
        "a disk is full",
        "df -h; df -i; delete old checkpoints, or write elsewhere",
    ),
    Failure(
        "storage_error", "crashed", YES, "storage",
        r"\[Errno (?:5|70|107|108|116|121)\]|Stale file handle|Transport endpoint is not connected|"
        r"OSError: .{0,20}Input/output error",
        "a read or write on a file system failed",
        "look at the mount and its server: dmesg, nfsstat, lfs check servers; then start it again",
    ),
    # CUDA, the program's own kernels and what was asked of them.
    Failure(
        "cuda_assert", "crashed", AFTER_FIXING, "user_code",
        r"device-side assert triggered|cudaErrorAssert|\.cuh?:\d+: .{0,200}Assertion .{0,300} failed",
        "a kernel's own check failed: mostly an index or a label out of range",
        "run on the CPU, or with CUDA_LAUNCH_BLOCKING=1: the line that is shown may be a later one",
    ),
    Failure(
        "cuda_illegal_access", "crashed", AFTER_FIXING, "user_code",
        r"illegal memory access|cudaErrorIllegalAddress|misaligned address|illegal instruction was encountered|"
        r"CUDA_EXCEPTION_\d|unspecified launch failure|NVRM: Xid \([^)]*\): (?:13|31|43|45)\b|"
        r"[Ii]nvalid __(?:global|shared|local)__ (?:read|write|atomic)",
        "a kernel touched memory that is not its own",
        "compute-sanitizer python ... names the kernel; CUDA_LAUNCH_BLOCKING=1 the line",
    ),
    Failure(
        "unsupported_gpu", "crashed", AFTER_FIXING, "node",
        r"no kernel image is available|is not compatible with the current PyTorch installation|"
        r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|driver version is insufficient|"
        r"found no NVIDIA driver|driver on your system is too old|cudaErrorNoDevice|no CUDA-capable device|"
        r"CUDA driver initialization failed|Error 80[234]: |cudaErrorSystemNotReady|invalid device ordinal",
        "the GPU, its driver and this build of torch do not fit together, or there is no GPU",
        "nvidia-smi; python -m torch.utils.collect_env; CUDA_VISIBLE_DEVICES; systemctl status nvidia-fabricmanager",
    ),
    # Other ranks.
    Failure(
        "rendezvous_timeout", "crashed", YES, "network",
        r"RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError|"
        r"Timed out after \d+ seconds waiting for clients|wait timeout after \d+ ?ms|client socket has timed out|"
        r"[Ss]ocket [Tt]imeout|Timed out waiting for clients|The server socket has failed to listen|DistStoreError|"
        r"TCPStore.{0,80}(?:timed? ?out|failed)|DistNetworkError|store->get\(.{0,60}\) got error",
        "not all ranks reached the rendezvous or its store in time",
        "the rank that is missing tells why: look for its log, MASTER_ADDR and MASTER_PORT, and the firewall between "
        "the nodes",
        weight=PEER,
    ),
    Failure(
        "address_in_use", "crashed", YES, "node",
        r"EADDRINUSE|[Aa]ddress already in use",
        "the rendezvous port is taken",
        "end what still uses it (ss -ltnp), or choose another --master-port",
    ),
    Failure(
        "nccl_timeout", "crashed", YES, "user_code",
        r"Watchdog caught collective operation timeout|collective operation timeout: Work|"
        r"Some NCCL operations have failed or timed out|Timed out waiting \d+ms for (?:recv|send) operation|"
        r"Observed flight recorder dump signal|Received a (?:dump signal|timeout signal)|"
        r"ran for \d+ milliseconds before timing out|failed to pass monitoredBarrier|Timeout at NCCL work|"
        r"Watchdog got stuck for \d+ ?seconds|"
        r"\[PG .{0,120}Exception \(either an error or timeout\) detected by watchdog",
        "a collective did not end within its timeout",
        "the rank that never joined is the culprit: give its flight-recorder dump, stack or log to autopsy as well",
        weight=PEER,
    ),
    Failure(
        "nccl_error", "crashed", YES, "network",
        r"NCCL (?:Error|error in)|"
        r"\bnccl(?:System|Internal|Remote|UnhandledCuda|InvalidUsage|InvalidArgument)Error\b|"
        r"NCCL WARN .{0,200}(?:failed|error|mismatch|[Tt]imeout)|DistBackendError|ncclCommInitRank|"
        r"unhandled (?:system|cuda) error|NET/IB : Got completion .{0,80}with error|ibv_\w+ .{0,40}failed",
        "NCCL could not communicate",
        "NCCL_DEBUG=INFO names the peer; check the links (ibstat, nvidia-smi nvlink -s) and the interface in "
        "NCCL_SOCKET_IFNAME",
        weight=PEER,
    ),
    Failure(
        "lost_peer", "crashed", YES, "unknown",
        r"Connection (?:reset|closed) by (?:remote )?peer|remote process exited|Connection was likely closed|"
        r"remote server shutdown|(?:RuntimeError|DistBackendError|ConnectionError).{0,200}Broken pipe|"
        r"Gloo .{0,80}failed|Connection closed by localRank",
        "another rank or the store went away",
        "find the rank that ended first",
        weight=PEER,
    ),
    Failure(
        "unreachable_service", "crashed", YES, "network",
        r"Max retries exceeded with url|Temporary failure in name resolution|Name or service not known|Connection refused\b|"
        r"Failed to establish a new connection|HTTP Error 5\d\d|\b50[234] Server Error|couldn't connect to 'https?://|"
        r"(?:Read|Connect)Timeout(?:Error)?\b|RemoteDisconnected|\[Errno 110\]",
        "a server outside the job (a hub, a bucket, a tracker) did not answer",
        "start it again; a local copy of the model or the data set needs no network: HF_HUB_OFFLINE=1",
    ),
    # Data workers.
    Failure(
        "dead_data_worker", "crashed", YES, "data",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal: Killed|exited unexpectedly)",
        "a DataLoader worker ended without a word: often the OOM killer",
        "dmesg | grep -i 'killed process'; num_workers=0 shows an error of the data set itself",
        weight=PEER,
    ),
    # Signals. The words of a shell and of torch's handlers.
    Failure(
        "segmentation_fault", "killed", AFTER_FIXING, "user_code",
        r"Segmentation fault|\bSIGSEGV\b|segfault at|Signal 11\b|exitcode *: -11|killed by signal: (?:Segmentation|11)|"
        r"general protection fault",
        "native code touched memory that is not its own",
        "python -X faulthandler; gdb on the core file (coredumpctl gdb): the newest native extension is the first "
        "suspect",
    ),
    Failure(
        "bus_error", "killed", AFTER_FIXING, "node",
        r"\bBus error|\bSIGBUS\b|Signal 7\b|exitcode *: -7\b",
        "memory that was mapped cannot be had: a full /dev/shm or a file that was cut short",
        "df -h /dev/shm; docker run --shm-size; check the mapped file",
    ),
    Failure(
        "illegal_instruction", "killed", AFTER_FIXING, "node",
        r"Illegal instruction|\bSIGILL\b|\bSIGFPE\b|Floating point exception",
        "the CPU refused an instruction",
        "a build for this CPU: lscpu against the flags of the wheel",
    ),
    # What the loop was fed, and what it computed.
    Failure(
        "checkpoint_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"[Ee]rror\(s\) in loading state_dict|PytorchStreamReader failed|invalid load key|UnpicklingError|"
        r"SafetensorError|Weights only load failed|(?:Missing|Unexpected) key\(s\) in state_dict|"
        r"CheckpointException|failed finding central directory|"
        r"loaded state dict (?:has|contains) .{0,80}(?:different|doesn't match)|Error\(s\) in loading|"
        r"incomplete metadata, file not fully covered",
        "a checkpoint does not load: it is torn, or of another model",
        "load the one before it; ls -l shows a file that is cut short",
    ),
    Failure(
        "device_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"Expected all tensors to be on the same device|found at least two devices|should be the same.{0,40}cuda|"
        r"is on (?:cpu|cuda:\d+), but expected|"
        r"Input type \(torch\.(?:cuda\.)?\w+\) and weight type \(torch\.(?:cuda\.)?\w+\) should be the same|"
        r"module must have its parameters .{0,80}on device",
        "tensors of one operation are on different devices",
        "move both to one device: .to(device)",
    ),
    Failure(
        "dtype_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"(?:mat1 and mat2|expected (?:m1 and m2|scalar type|both|object)|[Ee]xpected .{0,40}) .{0,80}(?:to have the same dtype|"
        r"but (?:got|found)(?: scalar type)? (?:Float|Double|Half|BFloat16|Long|Int|Bool|Byte)\b)|"
        r"must have the same dtype|not implemented for '\w+'|result type \w+ can't be cast|"
        r"Index put requires the source and destination dtypes match|Unsupported dtype",
        "tensors of one operation have different types",
        "cast one of them: .to(dtype); look at what autocast leaves out",
    ),
    Failure(
        "shape_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match|"
        r"shapes? .{0,80}cannot be (?:multiplied|broadcast)|size mismatch\b|Sizes of tensors must match|"
        r"shape '\[.{0,80}\]' is invalid for input|[Ee]xpected .{0,60}(?:channels|dimension|input batch_size|size)|"
        r"stack expects each tensor to be equal size|operands could not be broadcast|"
        r"Given groups=\d+, weight of size|cannot reshape array|must match the existing size|"
        r"Expected more than 1 value per channel",
        "tensors of one operation have shapes that do not fit",
        "print the shapes before that line; the last batch of an epoch is often smaller",
    ),
    Failure(
        "nan_guard", "crashed", AFTER_FIXING, "user_code",
        r"(?i)\b(?:found|detected|encountered|returned|got|produced)\b.{0,60}\b(?:nan|inf|non-?finite|not finite)\b(?!\.)|"
        r"\b(?:nan|non-?finite)\b.{0,60}\b(?:detected|found|encountered|abort\w*|stopping|exiting|halt\w*)\b|"
        r"\b(?:loss|gradients?|grad norm)\b.{0,40}\bis (?:nan|inf|not finite|non-?finite)\b|"
        r"returned nan values in its \d+th output|Loss is (?:NaN|infinite)|"
        r"[Ll]oss scale already at minimum|Minimum loss scale reached|Input contains NaN",
        "the loss or a gradient became NaN or infinite, and the program stopped for it",
        "torch.autograd.set_detect_anomaly(True) names the operation; lower the learning rate, clip gradients, look at "
        "the batch",
    ),
    Failure(
        "compile_error", "crashed", AFTER_FIXING, "user_code",
        r"torch\._dynamo\.exc\.\w+|torch\._inductor\.exc\.\w+|InductorError|BackendCompilerFailed|"
        r"LoweringException|triton\.\w+\.errors\.\w+|CompilationError\b|Error building extension|"
        r"ninja: build stopped|nvcc fatal|PassManager::run failed|PTXASError|ptxas (?:fatal|error)|"
        r"triton\.runtime\.errors\.\w+",
        "code could not be compiled for the GPU or the CPU",
        "TORCH_LOGS=+dynamo,inductor; TORCHDYNAMO_DISABLE=1 shows whether the model itself is sound",
    ),
    Failure(
        "cuda_error", "crashed", YES, "gpu",
        r"CUDA(?: driver)? error(?::|\b)|\bcuda(?:Error|rtGet)\w+|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|CUDNN_BACKEND|"
        r"AcceleratorError|cusolver\w* error|CUDA_ERROR_\w+|HIP error",
        "CUDA reported an error",
        "CUDA_LAUNCH_BLOCKING=1 shows the line; dmesg | grep -i xid whether the card is sound",
    ),
    # Python, from the particular to the general.
    Failure(
        "missing_module", "crashed", AFTER_FIXING, "user_code",
        r"ModuleNotFoundError\b|\bNo module named\b|ImportError\b|cannot open shared object file|undefined symbol: ",
        "a module or library cannot be imported",
        "pip show it in the job's own environment; PYTHONPATH, LD_LIBRARY_PATH",
    ),
    Failure(
        "permission_denied", "crashed", AFTER_FIXING, "user_code",
        r"PermissionError\b|\[Errno 13\]|\[Errno 1\] Operation not permitted|: Permission denied\b",
        "a file may not be read or written by this user",
        "ls -ld it and its folders, as the user of the job",
    ),
    Failure(
        "missing_file", "crashed", AFTER_FIXING, "user_code",
        r"FileNotFoundError\b|\[Errno 2\]|: No such file or directory|(?:NotADirectory|IsADirectory)Error\b|"
        r"can't open file '|does not appear to have a file named",
        "a file or folder is not there",
        "ls -l it on the node that failed: a mount may be missing there",
    ),
    Failure(
        "division_by_zero", "crashed", AFTER_FIXING, "user_code",
        r"ZeroDivisionError\b|integer division or modulo by zero",
        "a division by zero",
        _PYTHON,
    ),
    Failure(
        "failed_assertion", "crashed", AFTER_FIXING, "user_code",
        r"AssertionError\b|: Assertion [`'].{0,300} failed\b",
        "an assertion failed",
        _PYTHON,
    ),
    # What only repeats an end.
    Failure(
        "interrupted", "killed", NO, "unknown",
        r"^KeyboardInterrupt\b|\bSIGINT\b|CANCELLED (?:AT|by)|DUE to SIGNAL (?:Terminated|Interrupt)|"
        r"State=CANCELLED",
        "a person or the scheduler cancelled it",
        "sacct -j JOBID -o State,Reason,Comment tells who",
        weight=ECHO,
    ),
    Failure(
        "terminated", "killed", YES, "scheduler",
        r"SignalException: .{0,60}got signal: \d+|Received signal 15|\bSIGTERM\b|^Terminated\b|: Terminated +\S|"
        r"got signal: 15|exitcode *: -15|Received \d+ death signal|exit code 143|Exit Code: +143",
        "SIGTERM asked it to end",
        "the scheduler's log tells who sent it: sacct, kubectl get events",
        weight=ECHO,
    ),
    Failure(
        "sigkill", "killed", YES, "unknown",
        r"^Killed$|: +\d+ Killed\b|\bSIGKILL\b|Signal 9\b|exit code 137|Exit Code: +137|exitcode *: -9",
        "SIGKILL ended it: the OOM killer, the scheduler or a person",
        "dmesg | grep -i 'killed process'; sacct -j JOBID; kubectl describe pod",
        weight=ECHO,
    ),
    Failure(
        "abort", "killed", AFTER_FIXING, "unknown",
        r"terminate called (?:after throwing|without)|\bSIGABRT\b|^Aborted\b|double free or corruption|"
        r"(?:free|malloc|munmap_chunk|realloc)\(\): (?:invalid|corrupt)|: +\d+ Aborted\b|Signal 6\b|"
        r"exitcode *: -6|Fatal Python error",
        "native code called abort(), as torch does for an error in a thread of its own",
        "read what stands before it",
        weight=ECHO,
    ),
    Failure(
        "failed_child", "crashed", YES, "unknown",
        r"ChildFailedError\b|ProcessExitedException\b|ProcessRaisedException\b|CalledProcessError\b|"
        r"failed \(exitcode: -?\d+\)|\bFAILED\b[ |]+\d+:\d+|State=FAILED\b|exited with non-?zero status|"
        r"srun: error: .{0,120}(?:Exited with exit code|exited)|mpirun .{0,80}exited",
        "the launcher reports that a rank failed",
        "read the log of that rank",
        weight=ECHO,
    ),
    # Any other exception of Python's.
    Failure(
        "runtime_error", "crashed", AFTER_FIXING, "user_code",
        r"^(?:\w+\.)*RuntimeError\b",
        "the program or a library raised RuntimeError",
        _PYTHON,
    ),
    Failure(
        "python_exception", "crashed", AFTER_FIXING, "user_code",
        r"^(?:\w+\.)*(?:[A-Z]\w*)?(?:Error|Exception|Failure|StopIteration|SystemExit)(?:: |$)|"
        r"^(?:SystemExit|StopIteration)\b",
        "the program raised an exception",
        _PYTHON,
    ),
    # No end by itself.
    Failure(
        "nan_guard", "crashed", AFTER_FIXING, "user_code",
        r"""(?i)\b(?:\w*loss|grad_?norm)\b[\"']?\s*[=:|]?\s*\(?(?:nan|-?inf)\b""",
        "the loss was NaN or infinite when the log ended",
        "torch.autograd.set_detect_anomaly(True) names the operation; lower the learning rate, clip gradients, look at "
        "the batch",
        hint=True,
    ),
)  # fmt: skip
# ``\w+Warning`` and what a log says of a try that it makes again is no end.
_NO_END = re.compile(
    r"\b\w*Warning\b|\bretry(?:ing)?\b|\bwill retry\b|\battempt \d+/\d+\b|\bclosing signal\b", re.IGNORECASE
)
NAMES = {one.name: one for one in reversed(FAILURES)}


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], Failure], ...]:
    """Made when the first line is read: most commands read none, and it takes 10 ms."""
    return tuple((re.compile(one.pattern), one) for one in FAILURES)


@lru_cache(maxsize=4096)
def named(line: str) -> Failure | None:
    """The end that one line of a log tells of: without the prefix of its rank and its time, cut to ``LONGEST_LINE``."""
    line = line[:LONGEST_LINE]
    if _NO_END.search(line):
        return None
    return next((one for pattern, one in _compiled() if pattern.search(line)), None)


def forms(cause: str) -> tuple[str, ...]:
    """The names of the ends of a cause, in the order of the table."""
    return tuple(dict.fromkeys(one.name for one in FAILURES if one.cause == cause))
