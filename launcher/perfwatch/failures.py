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
    ``PEER``, ``ECHO``). hint: True for a line that alone does not show an end. alike: what it is mistaken for, and how that differs.
    through: a frame, as Python prints it, with its source; an exception that comes through it and that alone would be called one of
    ``instead_of``, or nothing, is this end.
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
    alike: str = ""
    through: str = ""
    instead_of: tuple[str, ...] = ()


def _signal(number: int, name: str, word: str = "", *translated: str, negative: bool = True) -> str:
    """How Python, shells and launchers tell of the signal that ended a process.

    Args:
        word: zsh's, of a job or of what it waited for.
        translated: that of shells in other languages.
        negative: True if a code of -number tells of it; many programs return -1 themselves.
    """
    code = rf"code *[:= ] *-{number}\b|" if negative else ""
    by_shells = rf"\b(?:[Ee]xit(?:ed)?(?: with)?[ _]?(?:[Cc]ode|[Ss]tatus)|non-?zero (?:code|status)(?: of)?)\"?[:=]? *{128 + number}\b"
    others = ([rf"(?:(?:zsh: |\[\d+\] +[+-]? *\d+ ){word}\b|{word}(?: \(core dumped\))?$)"] if word else []) + [
        *translated
    ]
    return (
        rf"\b{name}\b|[Ss]ignal {number}\b|SIGNAL: {number}\b|\bSignal: [\w -]{{1,40}} \({number}\)|{code}{by_shells}|"
        rf"\bWTERMSIG {number}\b" + "".join(f"|^{one}" for one in others)
    )


def _windows(*status: int) -> str:
    """How launchers tell of the NTSTATUS that ended a process: as a number without or with a sign, or in hex."""
    told = "|".join(f"{code}|{code - (1 << 32)}|0x{code:X}|0x{code:x}" for code in status)
    return rf"(?:[Ss]tatus|[Cc]ode)\W{{1,3}}(?:{told})\b"


def _winerror(*codes: int) -> str:
    """Windows' number of an error, which is the same in every language, as Python prints it."""
    return rf"\[WinError (?:{'|'.join(str(code) for code in codes)})\]"


def _raised(words: str) -> str:
    """Words in the message of an exception: elsewhere they may be a remark."""
    return rf"^(?:\w+\.)*\w*(?:Error|Exception): .{{0,300}}(?:{words})"


def _by_shell(word: str) -> str:
    """How a shell or srun tells of it, behind whatever stands in the line: a bar does not end it."""
    return rf"(?:^|(?<=[\])\d%])|(?<= [|/\\-])|tasks? [\d,-]+: ){word}$"


# The number of a CUDA error, as native libraries tell it: of a call of the driver, or of what ran on the card.
_NUMBERED = (
    r"(?:\bCUDA\b|\b[Cc]uda\b|\bcu[A-Z]\w{1,60}|\bGPU\b).{0,80}?(?:[Ff]ail(?:ed|ure)|[Ee]rror)"
    r"(?:[ :=!(]{1,3}(?:with|error|code|status)){0,3}[ :=!(]{1,3}"
)
_NODE = "start it again on another node; drain this one; nvidia-smi -q -d ECC,ROW_REMAPPER"
_RESUME = "start it again from its last checkpoint"
_REFUSED = (
    r"\b(?:[Ee]xpect(?:s|ed)|must|should|same|match\w*|mismatch\w*|[Ii]nvalid|incompatible|inconsistent|but (?:got|found)|cannot|"
    r"not supported|unsupported)\b"
)
_PYTHON = "read the traceback, its last line first"
GENERAL = ("runtime_error", "python_exception")  # say no more than that something was raised

FAILURES = (
    # The card and its driver: what the program says afterwards follows from it.
    Failure(
        "ecc_error", "gpu_fault", YES, "gpu",
        r"uncorrectable ECC errors?|NVRM: Xid \([^)]*\): (?:48|63|64|94|95)\b|cudaErrorECCUncorrectable",
        "the GPU's memory has an uncorrectable error",
        _NODE,
        alike="corrected ECC errors and counts over the card's whole life, which end nothing; a CUDA error without an Xid of "
        "that time is mostly the program's own",
    ),
    Failure(
        "lost_gpu", "gpu_fault", YES, "gpu",
        r"\b(?:amdgpu|nvidia|xe|i915) [\da-f:.]{7,12}: .{0,80}device inaccessible|fallen off the bus|NVRM: Xid \([^)]*\): 79\b|"
        r"GPU is lost|GPU requires reset|NVML_ERROR_GPU_IS_LOST|"
        r"Unable to determine the device handle",
        "the GPU has fallen off the bus",
        _NODE,
        alike="an nvidia-smi that fails in one container only: the card is there, but not passed in",
    ),
    Failure(
        "xid_error", "gpu_fault", YES, "gpu",
        r"NVRM: Xid \([^)]*\): (?:61|62|69|74|109|110|119|120|121|122|123|124|140|143|144|145|149|154)\b|SXid|"
        r"caused by previous Xid (?:48|63|64|79|94|95|119|120|121|122|123|124|140|143|144|145|149|154)\b|HW Exception by GPU|"
        r"amdgpu\b.{0,80}(?:ring [\w.]+ timeout|GPU reset)|cudaErrorHardwareStackError|\bhardware stack error|"
        r"nvlink or a hardware error|\bNVLink error|NVSwitch.{0,40}fatal",
        "the driver announced an error of the GPU, its firmware or its links",
        _NODE,
        alike="Xid 13, 31, 43 and 45, which a kernel of the program causes (cuda_illegal_access)",
    ),
    Failure(
        "failed_diagnostic", "gpu_fault", YES, "gpu",
        r"^dcgmi diag: .*\b[Ff]ail(?:ed)?\b",
        "a test of dcgmi diag has failed on a GPU",
        _NODE,
        alike="a test that was skipped, or that failed because another process used the card meanwhile",
    ),
    # Memory.
    Failure(
        "cuda_out_of_memory", "out_of_memory", AFTER_FIXING, "user_code",
        r"bad_alloc: .{0,40}CUDA error|PI_ERROR_OUT_OF_\w+|[Nn]ot enough GPU (?:video )?memory|CallbackErrorOutOfMemory|"
        r"(?:\b[Cc][Uu][Dd][Aa]|HIP) (?:\w+ )?[Ee]rror(?: ?\(\d+\))? ?: ?out of memory|\berror=2 : out of memory|"
        r"MODULE:PT_DEVMEM Allocation failed|ZE_RESULT_ERROR_OUT_OF_\w+|"
        r"Out of memory\. Trying to allocate|"
        r"(?:CUDA|HIP|XPU|NPU|HPU|backend) out of memory|Cuda failure .{0,8}'out of memory'|"
        r"(?<!ray\.exceptions\.)(?<!java\.lang\.)\bOutOfMemoryError\b(?!')|"
        r"CUDA_ERROR_OUT_OF_MEMORY|"
        r"(?:CUDA|HIP) error: '?out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory|HSA_STATUS_ERROR_OUT_OF_RESOURCES|"
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
        r"RESOURCE_EXHAUSTED: .{0,80}(?:[Oo]ut of memory|Attempting to (?:reserve|allocate))|CUDA error ?\(2\)|"
        r"Out of memory error on GPU|Dst tensor is not initialized|Status: out of memory|cudaMalloc retry failed|"
        r"UR_RESULT_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY)|OOM when allocating(?!.{0,300}(?:device:CPU|allocator (?:\w+_)?cpu))|"
        r"(?:cudaMalloc failed|GPUassert): out of memory|in memory space hbm|Invalid buffer size: |"
        r"No available memory for the cache blocks|"
        r"Free memory on device .{0,120}less than desired|larger than the (?:available KV cache memory|"
        r"maximum number of tokens that can be stored)|"
        r"RuntimeError: Not enough memory\b",
        "the GPU has no memory left for what was asked",
        "a smaller micro-batch with gradient accumulation, or activation checkpointing",
        alike="host_memory_refused: there the host's allocator refuses, not the card's; a fragmented cache has much memory "
        "reserved and little allocated",
    ),
    Failure(
        "shared_memory_full", "out_of_memory", AFTER_FIXING, "node",
        r"out of shared memory|insufficient shared memory \(shm\)|unable to (?:write to|open) file </torch_\w+>|ObjectStoreFullError|"
        r"shared memory object .{0,100}No space left|"
        r"/dev/shm.{0,80}No space left|No space left on device.{0,80}/dev/shm|"
        r"Error while creating shared memory segment|unable to allocate shared memory|"
        r"NCCL WARN Call to (?:posix_fallocate|ftruncate) failed",
        "/dev/shm is full",
        "docker run --shm-size, or a larger emptyDir of medium Memory at /dev/shm; fewer DataLoader workers",
        alike="disk_full: the same errno, but the path lies below /dev/shm",
        through=r'/multiprocessing/(?:synchronize|shared_memory|heap)\.py", line \d+, in ',
        instead_of=("disk_full",),
    ),
    Failure(
        "cgroup_out_of_memory", "out_of_memory", AFTER_FIXING, "user_code",
        r"\b[Ss]tep [\d.]+ exceeded memory limit|"
        r"Memory cgroup out of memory|cgroup out-of-memory handler|tasks? [\d,-]+: Out Of Memory|"
        r"oom[-_]kill event|\bOOMKilled\b(?!\"?[:=] ?false)|\bOUT_OF_ME(?:MORY)?\b|"
        r"Exceeded (?:job|step) memory limit|\boomd\b.{0,60}[Kk]illed|constraint=CONSTRAINT_MEMCG|TERM_MEMLIMIT|"
        r"job killed: v?mem \d+\w* exceeded limit|[Kk]illed .{0,40}exceeding memory limits|"
        r"running beyond (?:physical|virtual) memory limit|gone over (?:cgroup )?memory limit|"
        r"exceed\w* job hard limit .{0,3}[hs]_(?:vmem|rss|data)",
        "the kernel killed a process because its control group (a container, a Slurm job) was at its memory limit",
        "a higher memory limit, fewer DataLoader workers, or a smaller data set in memory",
        alike="oom_killer: there the whole machine is out of memory; sigkill without a line of the kernel may be either",
    ),
    Failure(
        "oom_killer", "out_of_memory", AFTER_FIXING, "user_code",
        r"\bRayOutOfMemoryError\b|\bNODE_OUT_OF_MEMORY\b|session crashed after using all available RAM|"
        r"tried to allocate more memory than is available|"
        r"Out of memory: Kill(?:ed)? process|invoked oom-killer|oom-kill:constraint|"
        r"Killed process \d+[ ,].{0,60}total-vm|oom_reaper: reaped process|killed by (?:the )?(?:kernel )?OOM|"
        r"[Ww]orkers? .{0,60}killed due to memory pressure|killed due to the node running low on memory",
        "the kernel killed a process because the machine had no memory left",
        "fewer DataLoader workers, a smaller data set in memory, or a machine with more memory",
        alike="cgroup_out_of_memory: the kernel's line names the control group there; an OOM kill of another job's process",
    ),
    Failure(
        "host_memory_refused", "out_of_memory", AFTER_FIXING, "user_code",
        r"^(?:\w+\.)*(?:_Array)?MemoryError\b|\b(?:_?[A-Z][a-z]+)?MemoryError(?::|$)|java\.lang\.OutOfMemoryError|"
        r"LLVM ERROR: out of memory|"
        rf"{_winerror(8, 14, 1450, 1455)}|{_windows(0xC0000017)}|"
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory|"
        r"Unable to allocate [\d.]+ [KMGTP]iB|OOM when allocating .{0,300}(?:device:CPU|allocator (?:\w+_)?cpu)",
        "the host refused memory that the program asked for",
        "ask for less at once; check ulimit -v and the memory limit of the container or the Slurm job",
        alike="cuda_out_of_memory; oom_killer, which gives no traceback",
    ),
    # The machine.
    Failure(
        "machine_check", "killed", YES, "node",
        r"mce: \[Hardware Error\]: (?:CPU \d+: )?Machine [Cc]heck(?! events)|\[Hardware Error\]: (?:event severity: (?:fatal|recoverable)|"
        r"Uncorrected)|EDAC .{0,80}\bUE\b|Kernel panic - not syncing|Memory failure: 0x[0-9a-f]+: Killing",
        "the machine reported an uncorrectable error of its CPU, memory or bus, or its kernel panicked",
        "start it again on another node; drain this one; mcelog, rasdaemon or the machine's event log (ipmitool sel list) name the part",
        alike="corrected errors (CE, events logged), which end nothing",
    ),
    Failure(
        "hung_task", "killed", YES, "storage",
        r"\btask \S{1,32}:\d+ blocked for more than \d+ seconds|\brcu\w* (?:self-)?detected (?:expedited )?stalls?|"
        r"watchdog: BUG: soft lockup",
        "a task waited in the kernel for minutes: a mount, a disk or a driver did not answer",
        "the stack below that line in dmesg names the driver or file system; then start it again on another node",
        alike="a task that waits for a slow disk and continues; a process that is killed while it waits stays until the wait ends",
    ),
    # Who ended it from outside.
    Failure(
        "time_limit", "killed", YES, "scheduler",
        r"\bState[:=] ?TIMEOUT\b|\bjob (?:is|was|has) timed[- ]out\b|not requeued because: timed-out|"
        r"DUE TO TIME LIMIT|\bDeadlineExceeded\b|State=TIMEOUT\b|\bTIMEOUT\b[ |]+\d+:\d+\b|"
        r"exceeded (?:its )?(?:wall ?time|time limit)|MaxRuntimeExceeded|"
        r"\b(?:exceed\w*|due to) (?:its |the )?(?:(?:hard|soft|maximum) )?wall[- ]?(?:clock|time)\b|exceed\w* job hard limit .{0,3}h_rt|"
        r"active on the node longer than the specified deadline|job killed: walltime \d+ exceeded limit|TERM_RUNLIMIT",
        "the scheduler ended the job at its time limit",
        f"{_RESUME}, with a longer limit or more frequent checkpoints",
        alike="preempted and interrupted: the same signal, other words of the scheduler",
    ),
    Failure(
        "preempted", "killed", YES, "scheduler",
        r"\b(?:instance|machine|node|VM|worker|pod|job|TPU) (?:is|was|has been) preempted\b|"
        r"DUE TO (?:PREEMPTION|JOB REQUEUE)|\bPREEMPTED\b|Preempted by|node was preempted|[Rr]eason: +(?:Preempted|Preempting|"
        r"PreemptionByScheduler)|"
        r"DisruptionTarget|[Ss]pot (?:instance )?(?:interruption|(?:was |has been )?(?:reclaimed|terminated))|TERM_PREEMPT|"
        r"\b(?:termination|preemption|interruption) (?:is |was )?(?:imminent|notice)\b|"
        r"\b[Jj]ob was evicted|"
        r"TaintManagerEviction|DeletionByTaintManager",
        "the scheduler took the machine for another job, or put the job back into its queue",
        _RESUME,
        alike="time_limit; node_failure, after which a job is requeued as well",
    ),
    Failure(
        "node_failure", "killed", YES, "node",
        r"DUE TO NODE FAILURE|\bNODE_FAIL\b|[Rr]eason: +(?:NodeLost|NodeShutdown)|"
        r"The node was low on resource(?!: ephemeral)|[Nn]ode had condition|imminent node shutdown|[Nn]ode failure on|\bNodeNotReady\b|"
        r"\bBOOT_FAIL\b|"
        r"job killed: node .{1,200}requested job terminate",
        "the node failed or gave the job up",
        _RESUME,
        alike="preempted; a job whose launcher lost its connection to a node that lives",
    ),
    Failure(
        "node_failure", "killed", YES, "node",
        r"[Rr]eason: +Evicted|\bnode has (?:died|crashed)|node .{0,120}marked dead|(?:LocalRaylet|Node|Owner)DiedError",
        "a node was lost",
        _RESUME,
        weight=PEER,
    ),
    Failure(
        "quota_exceeded", "crashed", AFTER_FIXING, "storage",
        r"Disk quota exceeded|\bEDQUOT\b",
        "the disk quota of the user or group is used up",
        "delete files or ask for more quota; quota -s",
        alike="disk_full: there df shows no room, here it shows some",
    ),
    Failure(
        "disk_full", "crashed", AFTER_FIXING, "storage",
        r"low on resource: ephemeral-storage|ephemeral local storage usage exceeds|EmptyDir volume .{1,80} exceeds the limit|"
        rf"{_winerror(39, 112)}|"
        r"No space left on device|\bENOSPC\b|PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos",
        "a disk is full",
        "df -h; df -i; delete old checkpoints, or write elsewhere",
        alike="quota_exceeded; shared_memory_full; a disk without free inodes (df -i)",
    ),
    Failure(
        "storage_error", "crashed", YES, "storage",
        r"unable to lock file|"
        rf"{_winerror(21, 23, 53, 55, 59, 64, 67, 483, 1117)}|"
        r"\[Errno (?:5|6|19|37|70|107|108|112|116|117|121|5\d\d)\]|\berrno = (?:5|37|116)\b|Stale file handle|"
        r"Transport endpoint is not connected|"
        r"(?:OSError: .{0,20}|failed with )Input/output error",
        "a read or write on a file system failed",
        "look at the mount and its server: dmesg, nfsstat, lfs check servers; then start it again",
        alike="missing_file and permission_denied, which come back each time",
    ),
    # CUDA, the program's own kernels and what was asked of them.
    Failure(
        "cuda_assert", "crashed", AFTER_FIXING, "user_code",
        r"\bblock: \[[\d,]{5,40}\], thread: \[[\d,]{5,40}\] Assertion |"
        r"[Dd]evice-side assert|cudaErrorAssert|\.cuh?:\d+: .{0,200}Assertion .{0,300} failed",
        "a kernel's own check failed: mostly an index or a label out of range",
        "run on the CPU, or with CUDA_LAUNCH_BLOCKING=1: the line that is shown may be a later one",
        alike="cuda_illegal_access: there no assertion is printed; every later CUDA call of the process repeats the error",
    ),
    Failure(
        "cuda_illegal_access", "crashed", AFTER_FIXING, "user_code",
        r"Warp Illegal Address|"
        r"illegal memory access|cudaErrorIllegalAddress|misaligned address|illegal instruction was encountered|"
        r"CUDA_EXCEPTION_\d|unspecified launch failure|Memory access fault by GPU|HSA_STATUS_ERROR_MEMORY_\w+|hipErrorIllegalAddress|"
        r"NVRM: Xid \([^)]*\): (?:13|31|43|45)\b|"
        r"[Ii]nvalid __(?:global|shared|local)__ (?:read|write|atomic)|" + _NUMBERED + r"(?:700|71[4-9])\b(?! ?[\w%/.])",
        "a kernel touched memory that is not its own",
        "compute-sanitizer python ... names the kernel; CUDA_LAUNCH_BLOCKING=1 the line",
        alike="a broken card, which other programs break on as well (dcgmi diag); the Python line that is shown is mostly a "
        "later call",
    ),
    Failure(
        "unsupported_gpu", "crashed", AFTER_FIXING, "node",
        _raised(
            r"[Rr]equires? (?:a|an NVIDIA|CUDA) GPU|CUDA (?:is )?(?:not available|unavailable)|[Nn]eed an? (?:\w+ )?GPU|"
            r"[Nn]o (?:\w+ )?accelerators? |Invalid CUDA 'device"
        )
        + r"|Cannot read .{0,200}for GPU arch|\bsystem not yet initialized|[Nn]o supported gpu backend found|unsupported toolchain|"
        r"your machine only has|"
        r"no kernel image is available|Attempting to deserialize object on (?:a )?CUDA device|invalid device function|device < num_gpus|"
        r"is not compatible with the current PyTorch installation|"
        r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|driver version is insufficient|"
        r"[Ff]ound no NVIDIA driver|No HIP GPUs are available|hipErrorNo(?:Device|BinaryForGpu)|driver on your system is too old|"
        r"cudaErrorNoDevice|no CUDA-capable device|"
        r"only supports? [\w ]{1,40} GPUs or newer|doesn't support bf16|device kernel image is invalid|NVML: (?:Driver/library|Unknown)|"
        r"nvidia-container-cli: |could not select device driver|CUDA unknown error|Invalid device id|not able to use GPU|No GPUs? found|"
        r"No operator found for `|no kernel found to launch|No available kernel\. Aborting|CUDA Setup failed despite|"
        r"(?:only supported|requires?|at least).{0,80}compute capability|CUDA-capable device\(s\) is/are busy|"
        r"CUDA driver initialization failed|Error 80[234]: |cudaErrorSystemNotReady|invalid device ordinal",
        "the GPU, its driver and this build of torch do not fit together, or there is no GPU",
        "nvidia-smi; python -m torch.utils.collect_env; CUDA_VISIBLE_DEVICES; systemctl status nvidia-fabricmanager",
        alike="lost_gpu: there the card was seen before; missing_module for a library that does not load",
    ),
    # Other ranks.
    Failure(
        "address_in_use", "crashed", YES, "node",
        rf"another process is utilizing it|{_winerror(10013, 10048)}|"
        r"EADDRINUSE|[Aa]ddress already in use",
        "the rendezvous port is taken",
        "end what still uses it (ss -ltnp), or choose another --master-port",
        alike="rendezvous_timeout: there the port is free, and other ranks do not come",
    ),
    Failure(
        "rendezvous_timeout", "crashed", YES, "network",
        r"Timed out initializing process group|connect\(\) timed out|"
        r"RendezvousTimeoutError|RendezvousConnectionError|"
        r"Timed out after \d+ seconds waiting for clients|Barrier timed out|wait timeout after \d+ ?ms|client socket has (?:timed out|"
        r"failed)|"
        r"Getting socket times out|"
        r"[Ss]ocket [Tt]imeout|Timed out waiting for clients|The server socket has failed to listen|DistStoreError|"
        r"DistNetworkError(?!.{0,80}(?:recv|send|reset|closed))|"
        r"TCPStore.{0,80}(?:timed? ?out|failed)|gloo/.{0,80}(?:connect .{0,60}(?:refused|timed out|unreachable)|Connect timeout)|"
        r"connectFullMesh failed|store->get\(.{0,60}\) got error",
        "not all ranks reached the rendezvous or its store in time",
        "check the log of the missing rank, MASTER_ADDR and MASTER_PORT, and the firewall between "
        "the nodes",
        alike="nccl_timeout: there all ranks met before; address_in_use",
        weight=PEER,
        through=r'/torch/distributed/rendezvous\.py", line \d+, in ',
        instead_of=("unreachable_service", *GENERAL),
    ),
    Failure(
        "nccl_timeout", "crashed", YES, "user_code",
        r"Watchdog caught collective operation timeout|collective operation timeout: Work|"
        r"Some NCCL operations have failed or timed out|Timed out waiting \d+ms for (?:recv|send) operation|"
        r"Observed flight recorder dump signal|Received a (?:dump signal|timeout signal)|"
        r"ran for \d+ milliseconds before timing out|failed to pass monitoredBarrier|Timeout at NCCL work|"
        r"Notify register times out|\bHCCL timeout|Application timeout caused pair closure|NCCL \w+ (?:has |have )?timed out|"
        r"^Termination timeout for `|[Ww]atchdog got stuck for \d+ ?seconds|Heartbeat monitor timed out|"
        r"after attempting to dump debug info, due to|"
        r"\[PG .{0,120}Exception \(either an error or timeout\) detected by watchdog",
        "a collective did not end within its timeout",
        "the rank that never joined is the culprit: give its flight-recorder dump, stack or log to autopsy as well",
        alike="the rank that gave up: it waited, and the culprit is another one; a slow first step that exceeds a short timeout",
        weight=PEER,
    ),
    Failure(
        "nccl_error", "crashed", YES, "network",
        r"NCCL communicator was aborted|\bnccl(?:System|Internal|Remote|UnhandledCuda|InvalidUsage|InvalidArgument)(?:Error)?\b|"
        r"NCCL WARN (?!Failed to open lib).{0,200}(?:[Ff]ail(?:ed|ure)|error|[Mm]ismatch|[Tt]imeout|truncated|no socket interface)|"
        r"NCCL (?:Error|error in)|DistBackendError|ncclCommInitRank|\bHCCL (?:function )?error\b|\bCCL_ERROR\b|"
        r"\boneCCL: .{0,120}EXCEPTION|\bERR02\d{3} DIST\b|"
        r"unhandled (?:system|cuda) error|Duplicate GPU detected|NET/IB ?: Got completion .{0,80}with (?:error|status=[1-9])|"
        r"ibv_\w+ .{0,40}failed",
        "NCCL could not communicate",
        "NCCL_DEBUG=INFO names the peer; check the links (ibstat, nvidia-smi nvlink -s) and the interface in "
        "NCCL_SOCKET_IFNAME",
        alike="lost_peer and nccl_timeout: NCCL says the same words when another rank has ended",
        weight=PEER,
    ),
    Failure(
        "unreachable_service", "crashed", YES, "network",
        r"\b(?:\w*ProtocolError|ClientPayloadError|API(?:Connection|Timeout)Error|RateLimitError|RemoteDisconnected)\b|"
        r"^(?:\w+\.)+(?:Connection|Timeout)Error: (?!\[)(?=.*(?:HTTP|aborted|[Ss]erver|socket))|"
        r"\bResourceExhausted: 429\b",
        "a server outside the job (a hub, a bucket, a tracker) did not answer",
        "start it again; a local copy of the model or the data set needs no network: HF_HUB_OFFLINE=1",
        alike="permission_denied for a token that has expired (401, 403); lost_peer, a connection between ranks",
    ),
    Failure(
        "lost_peer", "crashed", YES, "unknown",
        r"reached monitoredBarrier, but received errors|\bUnavailableError: .{0,200}\bSocket closed|"
        r"Connection (?:reset|closed) by (?:remote )?peer|remote process exited|Connection was likely closed|"
        r"remote server shutdown|failed to recv, got 0 bytes|exception on one of the ranks?|\b[Aa]nother (?:task|rank|worker|"
        r"process) (?:has )?(?:died|failed|crashed)\b|[Hh]eartbeat timeout|(?:RuntimeError|DistBackendError|"
        r"ConnectionError).{0,200}Broken pipe|"
        r"Gloo .{0,80}failed|Connection closed by localRank|stopped sending heartbeats|SocketImpl\(.{0,200}Broken pipe|"
        rf"lost communication with a remote daemon|{_winerror(10053, 10054)}|JAX distributed service detected fatal errors",
        "another rank or the store went away",
        "find the rank that ended first",
        alike="nccl_error: there the links fail while all ranks live; the rank that says so is a victim",
        weight=PEER,
    ),
    Failure(
        "unreachable_service", "crashed", YES, "network",
        r"Max retries exceeded|StatusCode\.UNAVAILABLE|Temporary failure in name resolution|Name or service not known|Connection refused\b|"
        r"Failed to establish a new connection|HTTP Error 5\d\d|"
        r"\b50[0234] (?:Server Error|GET|PUT|POST|Service Unavailable|Bad Gateway|Gateway Time-?out|Internal Server Error)\b|"
        r"An error occurred \((?:SlowDown|ServiceUnavailable|InternalError|RequestTimeout|50[03])\)|"
        r"^(?:\w+\.)+(?:ServiceUnavailable|RetryError)\b|"
        r"\bConnectError\b|\bURLError\b|couldn't connect to 'https?://|"
        r"EndpointConnectionError|ChunkedEncodingError|IncompleteRead\(|ServerDisconnected|ClientConnector\w*Error|FSTimeoutError|"
        r"(?:Read|Connect)Timeout(?:Error)?\b|RemoteDisconnected|\[Errno (?:101|110|113)\]|\bCommError\b|\b429 Client Error|"
        rf"CERTIFICATE_VERIFY_FAILED|{_winerror(10051, 10060, 10061, 10065, 11001, 11002)}|"
        r"\b(?:Proxy|SSL)Error\b|Couldn't reach |LocalEntryNotFoundError|OfflineModeIsEnabled",
        "a server outside the job (a hub, a bucket, a tracker) did not answer",
        "start it again; a local copy of the model or the data set needs no network: HF_HUB_OFFLINE=1",
    ),
    # Data workers.
    Failure(
        "dead_data_worker", "crashed", YES, "data",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal: Killed|exited unexpectedly)|"
        r"\b(?:sub)?process\w* .{0,60}\babruptly\b|\b[Ww]orkers? .{0,40}\b(?:no longer alive|died unexpectedly)|"
        r"\bwas unexpectedly terminated\b|"
        r"Pin memory thread exited unexpectedly",
        "a worker process (of a data loader, of an environment) ended without a word: often the OOM killer",
        "dmesg | grep -i 'killed process'; num_workers=0 shows an error of the data set itself",
        alike="crashed_data_worker: there the worker's own signal is named; out_of_memory, if the kernel's log has its pid",
        weight=PEER,
        through=r'/torch/utils/data/dataloader\.py", line \d+, in _try_get_data\b|/multiprocessing/connection\.py", line \d+, in _?recv',
        instead_of=("lost_peer", *GENERAL),
    ),
    Failure(
        "crashed_data_worker", "crashed", AFTER_FIXING, "data",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?!Killed)|"
        r"Unexpected (?:segmentation fault|floating-point exception) encountered in worker",
        "native code in a DataLoader worker failed",
        "num_workers=0 with python -X faulthandler shows the call; read the sample at which it fails",
        alike="dead_data_worker, which was killed from outside; segmentation_fault of the rank itself",
    ),
    Failure(
        "data_timeout", "crashed", YES, "data",
        r"(?:DataLoader|\b[Ww]orkers?) timed out after [\d.]+ seconds|^multiprocessing\.context\.TimeoutError\b",
        "a DataLoader worker gave no batch within the loader's timeout",
        "perfwatch run names the line at which the worker waits (stuck_worker); py-spy dump --pid of the worker",
        alike="dead_data_worker, which has ended; a first batch that takes long, for which the timeout is too short",
        weight=PEER,
    ),
    # Signals. The words of a shell and of torch's handlers.
    Failure(
        "segmentation_fault", "killed", AFTER_FIXING, "user_code",
        r"\b[Aa]ccess violation\b|EXCEPTION_(?:ACCESS_VIOLATION|STACK_OVERFLOW)|[Ff]atal exception: stack overflow|"
        r"has overflowed its stack|"
        r"Segmentation fault|segfault at|general protection fault|"
        + _signal(11, "SIGSEGV", "segmentation fault", "段错误", "Speicherzugriffsfehler", "Erreur de segmentation")
        + "|" + _windows(0xC0000005, 0xC00000FD),
        "native code touched memory that is not its own",
        "python -X faulthandler; gdb on the core file (coredumpctl gdb): the newest native extension is the first "
        "suspect",
        alike="abort: there native code noticed the error itself; a stack overflow of endless recursion",
    ),
    Failure(
        "bus_error", "killed", AFTER_FIXING, "node",
        r"\bBus error|" + _signal(7, "SIGBUS", "bus error", "总线错误"),
        "memory that was mapped cannot be had: a full /dev/shm or a file that was cut short",
        "df -h /dev/shm; docker run --shm-size; check the mapped file",
        alike="segmentation_fault: there the address is wrong, here its memory cannot be had",
    ),
    Failure(
        "illegal_instruction", "killed", AFTER_FIXING, "node",
        r"Illegal instruction|Floating point exception|"
        + _signal(4, "SIGILL", "illegal hardware instruction") + "|" + _signal(8, "SIGFPE", "floating point exception") + "|"
        + _windows(0xC000001D, 0xC0000094),
        "the CPU refused an instruction",
        "a build for this CPU: lscpu against the flags of the wheel",
        alike="unsupported_gpu, where the GPU's code does not fit",
    ),
    # What the loop was fed, and what it computed.
    Failure(
        "checkpoint_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"storage has wrong (?:byte )?size|\bKey .{1,200} not found in checkpoint|Unable to open table file|not an sstable|"
        r"[Ee]rror\(s\) in loading state_dict|PytorchStreamReader failed|invalid load key|UnpicklingError|"
        r"SafetensorError|Weights only load failed|(?:Missing|Unexpected) key\(s\) in state_dict|"
        r"Checkpoint(?:ing)?Exception|Trying to restore \w+ state but|failed finding central directory|"
        r"loaded state dict (?:has|contains) .{0,80}(?:different|doesn't match)|Error\(s\) in loading|"
        r"incomplete metadata, file not fully covered|copying a param with shape|unexpected EOF, expected \d+ more bytes|"
        r"^(?:\w+\.)*\w*Error: [Kk]eys? '.{1,400}' (?:is|are) missing|checkpoint being loaded used|value from checkpoint|"
        r"Trying to set a tensor of shape|"
        r"Unable to load weights from",
        "a checkpoint does not load: it is torn, or of another model",
        "load the one before it; ls -l shows a file that is cut short",
        alike="missing_file, where there is no checkpoint at all; shape_mismatch in the forward pass",
        through=r"\.load_state_dict\(|/torch/serialization\.py\", line \d+, in \w*load|, in _?(?:load|restore|resume)_\w*(?:checkpoint|"
        r"state_dict|optimizers?|state)\b|"
        r"/distributed/checkpoint/\w*(?:load|planner)\w*\.py\", line \d+, in \w*load\w*",
        instead_of=("failed_assertion", "shape_mismatch", *GENERAL),
    ),
    Failure(
        "device_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"Expected all tensors to be on the same device|found at least two devices|should be the same.{0,40}cuda|"
        r"can't convert \w+(?::\d+)? device type tensor to numpy|"
        r"is on (?:cpu|cuda:\d+), but expected|is not on the expected device|"
        r"Input type \(torch\.(?:cuda\.)?\w+\) and weight type \(torch\.(?:cuda\.)?\w+\) should be the same|"
        r"is on (?:CPU|GPU), but expected|either on cpu or on the same device|cannot be accessed from Triton|Tensors must be CUDA|"
        r"device type for generator but found|Cannot copy out of meta tensor|on the meta device|Expected a '?cuda'? device|"
        r"^(?:\w+\.)*\w*Error: .{0,200}\bon (?:device )?(?:cuda:\d+|cpu|gpu).{0,100}\bon (?:device )?(?:cuda:\d+|cpu|gpu)\b|"
        r"module must have its parameters .{0,80}on device|No backend type associated with device type",
        "tensors of one operation are on different devices",
        "move both to one device: .to(device)",
        alike="dtype_mismatch and shape_mismatch, which name types and sizes",
    ),
    Failure(
        "dtype_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"unsupported ScalarType|value cannot be converted to type (?:at::)?\w+ without overflow|"
        r"^TypeError: .{0,80} dtype .{0,80}(?:support|convert)|"
        r"(?:mat1 and mat2|expected (?:m1 and m2|scalar type|both|object)|[Ee]xpected .{0,40}) .{0,80}(?:to have (?:the same )?dtype|"
        r"but (?:got|found)(?: scalar type)? (?:Float|Double|Half|BFloat16|Long|Int|Bool|Byte)\b)|"
        r"must have the same dtype|Input type \([\w:]+\) and bias type|Found dtype \w+ but expected|expected dtype |"
        r"unscale FP16 gradients|with uniform dtype|"
        r"must have the same type as|not implemented for '\w+'|result type \w+ can't be cast|"
        r"Index put requires the source and destination dtypes match|Unsupported dtype|only supports? (?:fp16|bf16|float16)",
        "tensors of one operation have different types",
        "cast one of them: .to(dtype); look at what autocast leaves out",
        alike="device_mismatch; an operation that the CPU lacks for half precision",
    ),
    Failure(
        "shape_mismatch", "crashed", AFTER_FIXING, "user_code",
        r"\bexpected \dD (?:or \dD )?input|\bcould not broadcast\b|"
        r"negative dimension|array dimensions .{0,60}must match|"
        r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match|"
        r"shapes? .{0,80}cannot be (?:multiplied|broadcast)|[Ss]ize mismatch\b|Sizes of tensors must match|"
        r"shape '\[.{0,80}\]' is invalid for input|[Ee]xpected .{0,60}(?:channels|dimension|input batch_size|size)|"
        r"stack expects each tensor to be equal size|expected sequence of length \d+ at dim|operands could not be broadcast|"
        r"too many indices for|different to the input size|shape mismatch: |doesn't match the broadcast shape|"
        r"does not match the shape of|same number of dimensions|[Dd]imension out of range|"
        r"split_sizes to sum exactly|size is not compatible with input tensor|Target size \(|must be the same as input size|"
        r"[Ss]hape mismatch|"
        r"should be of size .{0,80}, but is|must have the same shape|Incompatible shapes|inhomogeneous shape|number of dims don't match|"
        r"padded input size per channel|"
        r"Given groups=\d+, weight of size|cannot reshape array|must match the existing size|"
        r"appears not to match sizes of the same param|Expected more than 1 value per channel|einsum\(\): .{0,120}does not broadcast",
        "tensors of one operation have shapes that do not fit",
        "print the shapes before that line; the last batch of an epoch is often smaller",
        alike="checkpoint_mismatch, whose lines name parameters; cuda_assert for an index out of range on the GPU",
    ),
    Failure(
        "nan_guard", "crashed", AFTER_FIXING, "user_code",
        r"(?i)\b(?:found|detected|encountered|returned|got|had|produced)\b.{0,60}\b(?:nan|inf|non-?finite|not finite)\b(?!\.)|"
        r"\b(?:nan|non-?finite)\b.{0,60}\b(?:detected|found|encountered|abort\w*|stopping|exiting|halt\w*)\b|"
        r"\b(?:loss|gradients?|grad norm)\b.{0,40}\bis (?:nan|inf|not finite|non-?finite)\b|"
        r"\bfind (?:nan|inf)\b|returned nan values in its \d+th output|Loss is (?:NaN|infinite)|non-?finite (?:loss|grad)|"
        r"^(?:\w+\.)*(?!FileNotFound|Permission|ModuleNotFound|Import|Key|OS)(?:\w*Error|Exception): .{0,300}"
        r"(?<![-\w/])(?:nans?|infs?|infinity|infinite|non-?finite|invalid numeric entries)\b(?! ?[(.\[/\\'\-_])|"
        r"probability tensor contains either|diverged .{0,40}\bnan|constraint .{0,80}found invalid values|"
        r"normal expects all elements of std|"
        r"^FloatingPointError\b|loss scale to 0\.0\b|"
        r"[Ll]oss scale already at minimum|Minimum loss scale reached|Input contains NaN",
        "the loss or a gradient became NaN or infinite, and the program stopped for it",
        "torch.autograd.set_detect_anomaly(True) names the operation; lower the learning rate, clip gradients, look at "
        "the batch",
        alike="a scaler that skips single steps (skipping_steps), which is normal; a metric of an empty set that prints nan",
    ),
    Failure(
        "compile_error", "crashed", AFTER_FIXING, "user_code",
        r"torch\._dynamo\.exc\.\w+|torch\._inductor\.exc\.\w+|InductorError|BackendCompilerFailed|"
        r"^(?:\w+\.)+(?:symbolic_shapes|frontend)\.\w+|\bLLVM ERROR: |MLIR pass pipeline|\b[Gg]raph compile failed|"
        r"\bcompile permanent error|"
        r"\b\w+(?:-cc|-compiler|cc|clang) (?:terminated|exited) abnormally|"
        r"nvrtc: error|LoweringException|triton\.\w+\.errors\.\w+|CompilationError\b|Error building extension|"
        r"\bCommand '\[?'?(?:[^' ]{1,200}[/\\])?(?:gcc|g\+\+|cc|c\+\+|clang(?:\+\+)?|nvcc|hipcc|ninja|ptxas)(?:-\d+)?(?:\.\w{3})?['\"]|"
        r"fatal error: \S{1,200}: No such file|command '\S{0,200}(?:gcc|g\+\+|nvcc|cc)' failed|Failed to find C compiler|Ninja is required|"
        r"CUDA_HOME (?:environment variable is not set|does not exist)|MissingCUDAException|"
        r"does not match the version torch was compiled with|"
        r"collect2: error|ninja: build stopped|nvcc fatal|PassManager::run failed|PTXASError|ptxas (?:fatal|error)|"
        r"triton\.runtime\.\w+\.[A-Z]\w+|\bptxas returned an error",
        "code could not be compiled for the GPU or the CPU",
        "TORCH_LOGS=+dynamo,inductor; TORCHDYNAMO_DISABLE=1 shows whether the model itself is sound",
        alike="a graph break or a fallback that is only logged; out of memory while compiling",
    ),
    Failure(
        "cuda_error", "crashed", YES, "gpu",
        _NUMBERED.replace(r"\bGPU\b", r"\bGPU kernel\b") + r"[1-9]\d{0,2}\b(?! ?[\w%/.])|"
        r"CUDA(?: driver)? error(?::|\b)|\bcuda(?:Error(?!_t\b)|rtGet)\w+|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|CUDNN_BACKEND|"
        r"Triton Error \[CUDA\]|DNN library initialization failed|unable to find an engine|cuDNN Frontend error|AcceleratorError|"
        r"cublasLt ran into an error|\bBlas \w+ launch failed|probably because cuDNN failed to initialize|(?:cuFFT|cuSPARSE|cuRAND) error|"
        r"(?:CUSPARSE|CURAND|HIPBLAS|MIOPEN)_STATUS_\w+|\bCUFFT_[A-Z]\w+|miopenStatus\w+|rocblas_status_\w+|\bhipError\w+|"
        r"valid cuDNN algorithm|\bMIOpen(?:\(\w+\))?:? ?Error|\brocBLAS error|\bPI_ERROR_\w+|UNKNOWN PI error|\bZE_RESULT_ERROR_\w+|"
        r"\bsynStatus ?= ?\w|"
        r"detected a device critical error|\bERR0[01]\d{3} (?:PTA|OPS)\b|"
        r"UR_RESULT_ERROR_\w+|cusolver\w* error|CUDA_ERROR_\w+|HIP error|HSA_STATUS_ERROR_\w+|"
        r"\bNPU (?:function )?error\b(?!, error code is)|\baicore (?:error|exception)",
        "CUDA, ROCm or another runtime of the card reported an error",
        "CUDA_LAUNCH_BLOCKING=1 (AMD_SERIALIZE_KERNEL=3) shows the line; dmesg | grep -iE 'xid|amdgpu' whether the card is sound",
        alike="cuda_assert, cuda_illegal_access and ecc_error, whose words stand above in the log or in the kernel's",
    ),
    Failure(
        "cuda_error", "crashed", YES, "gpu",
        r"\bNPU (?:function )?error, error code is \d",
        "the NPU reported an error by its number alone",
        "read the lines of CANN below it (EI0002, EZ9999): they tell what the number stands for",
        alike="nccl_timeout: a rank that waits for another one ends with such a number",
        weight=ECHO,
    ),
    Failure(
        "resource_limit", "crashed", AFTER_FIXING, "node",
        r"\bCPU time limit exceeded|\b[Ff]ile size limit exceeded|\[Errno 27\]|" + _signal(24, "SIGXCPU") + "|"
        "" + _signal(25, "SIGXFSZ") + "|"
        r"Too many open files|\[Errno 2[34]\]|received 0 items of ancdata|can't start new thread|"
        r"pthread_create (?:failed|has failed)|Thread creation failed|OMP: Error #34|\[Errno 11\] Resource temporarily unavailable|"
        r"fork: .{0,20}Resource temporarily",
        "a limit on open files, threads or processes was reached",
        "ulimit -n and -u; the pids limit of the container; torch.multiprocessing.set_sharing_strategy('file_system') needs fewer "
        "open files",
        alike="host_memory_refused, a limit on memory; shared_memory_full",
    ),
    # Python, from the particular to the general.
    Failure(
        "missing_module", "crashed", AFTER_FIXING, "user_code",
        rf"{_winerror(126, 127, 182, 193, 1114)}|{_windows(0xC0000135, 0xC0000139, 0xC000007B)}|"
        r"\b(?:PackageNotFoundError|DistributionNotFound)\b|FATAL ERROR: Cannot load \S|^RuntimeError: (?:operator \S+ does not exist|"
        r"Could not load lib\w)|"
        r"ModuleNotFoundError\b|\bNo module named\b|ImportError\b|(?:^\w*Error: |loading shared libraries: |"
        r"Could not load library ).{0,200}"
        r"cannot open shared object file|undefined symbol: |Cannot load symbol |version \W?GLIBC\w*[\d.]+\W? not found|"
        r"Failed to import \S+ because of the following error",
        "a module or library cannot be imported",
        "pip show it in the job's own environment; PYTHONPATH, LD_LIBRARY_PATH",
        alike="a missing optional module that is caught; unsupported_gpu",
    ),
    Failure(
        "permission_denied", "crashed", AFTER_FIXING, "user_code",
        rf"{_winerror(5, 19, 1314)}|"
        r"\[Errno 30\]|: Read-only file system|"
        r"\b40[13] (?:Forbidden|Unauthorized)\b|\bAuthenticationError\b|Host key verification failed|PermissionError\b|\[Errno 13\]|"
        r"\[Errno 1\] Operation not permitted|[:;] [Pp]ermission denied\b|\bPermissionDenied(?:Error)?\b|"
        r"\b40[13] Client Error|\bgated repo\b|api_key not configured|Unable to locate credentials|DefaultCredentialsError|"
        r"An error occurred \((?:40[13]|AccessDenied\w*|Expired\w+|Invalid(?:AccessKeyId|\w*Token\w*)|SignatureDoesNotMatch|"
        r"UnrecognizedClient\w*)\)|"
        r"\b40[13] (?:GET|PUT|POST|HEAD|PATCH|DELETE) http|\b[Ee]rror(?: code:?)? 40[13]\b|[Ii]nvalid (?:user |access |API |"
        r"auth\w* )?token\b(?=.{0,80}log(?:ged)? ?in)|"
        r"HTTP Error 40[13]",
        "a file or a service may not be used by this user",
        "ls -ld it and its folders, as the user of the job; of a service, check the token or the role of the job",
        alike="missing_file; a read-only file system ([Errno 30]); unreachable_service, which did not answer at all",
    ),
    Failure(
        "missing_file", "crashed", AFTER_FIXING, "user_code",
        r"FileNotFoundError\b|\[Errno 2\]|[:;] [Nn]o such file or directory|(?:NotADirectory|IsADirectory)Error\b|"
        r"can't open file '|Error: .{0,300}does not appear to have a file named|Can't load (?:\w+ ){1,3}(?:for|of) '|"
        r"no file named .{0,200} found in|is not a valid model identifier|"
        r"(?:Repository|Entry|Dataset|DataFiles)NotFoundError|EmptyDatasetError|: command not found|\b404 Client Error|"
        rf"An error occurred \((?:404|NoSuch\w+)\)|HTTP Error 404|\b404 (?:GET|HEAD) http|\berrno = 2\b|{_winerror(2, 3)}",
        "a file or folder is not there",
        "ls -l it on the node that failed: a mount may be missing there; the name of a model may be misspelt",
        alike="storage_error: there the file exists, and its server does not answer",
    ),
    Failure(
        "division_by_zero", "crashed", AFTER_FIXING, "user_code",
        r"ZeroDivisionError\b|integer division or modulo by zero",
        "a division by zero",
        _PYTHON,
        alike="nan_guard: tensors give inf instead of raising",
    ),
    Failure(
        "failed_assertion", "crashed", AFTER_FIXING, "user_code",
        r"^Assertion failed: |"
        r"AssertionError\b|INTERNAL ASSERT FAILED|\bCheck failed: |: Assertion [`'].{0,300} failed\b",
        "an assertion failed",
        _PYTHON,
        alike="cuda_assert, which fails on the GPU",
    ),
    # What only repeats an end.
    Failure(
        "rendezvous_timeout", "crashed", YES, "network",
        r"RendezvousClosedError",
        "the rendezvous was closed before the ranks met: the job ended on another node",
        "check the log of the node that ended first",
        weight=ECHO,
    ),
    Failure(
        "interrupted", "killed", NO, "unknown",
        rf"{_windows(0xC000013A)}|\b[Ee]xit(?:ed)?(?: with)? (?:[Cc]ode|[Ss]tatus)(?: [Cc]ode)?[:=]? *130\b|"
        r"^KeyboardInterrupt\b|\bSIGINT\b|\b[Jj]ob (?:was )?(?:deleted|cancell?ed) (?:at request of|by) |CANCELLED (?:AT|by)|"
        r"DUE to SIGNAL (?:Terminated|Interrupt)|"
        r"State=CANCELLED",
        "a person or the scheduler cancelled it",
        "sacct -j JOBID -o State,Reason,Comment tells who",
        alike="terminated: SIGTERM of a scheduler instead of SIGINT",
        weight=ECHO,
    ),
    Failure(
        "terminated", "killed", YES, "scheduler",
        r"^Hangup$|SignalException: .{0,60}got signal: \d+|" + _signal(1, "SIGHUP", "hangup", negative=False) + "|"
        r"\bSIGTERMException\b|^Terminated\b|"
        r"" + _by_shell("Terminated") + r"|: Terminated +\S|"
        r"got signal: 15|Received \d+ death signal|" + _signal(15, "SIGTERM", "terminated"),
        "SIGTERM asked it to end",
        "the scheduler's log tells who sent it: sacct, kubectl get events",
        alike="time_limit and preempted, which the scheduler's own words tell",
        weight=ECHO,
    ),
    Failure(
        "sigkill", "killed", YES, "unknown",
        _by_shell("Killed(?:: 9)?") + "|" + _signal(9, "SIGKILL", "killed", "已杀死$", "Getötet$", "Убито$"),
        "SIGKILL ended it: the OOM killer, the scheduler or a person",
        "dmesg | grep -i 'killed process'; sacct -j JOBID; kubectl describe pod",
        alike="cgroup_out_of_memory and oom_killer: the kernel's log tells; time_limit, where SIGTERM was not heeded",
        weight=ECHO,
    ),
    Failure(
        "sigkill", "killed", YES, "unknown",
        r": +\d+ Killed\b",
        "SIGKILL ended what the shell had started, which no launcher does: the OOM killer, the scheduler or a person",
        "dmesg | grep -i 'killed process'; sacct -j JOBID; kubectl describe pod",
        weight=PEER,
    ),
    Failure(
        "abort", "killed", AFTER_FIXING, "unknown",
        r"^(?:Abort trap|Trace/BPT trap)\b|buffer overflow detected|free invalid pointer|^thread '.{1,100}' panicked at |^OMP: Error #\d+|"
        r"failed assertion `|terminate called (?:after throwing|without)|^Aborted\b|" + _by_shell(r"Aborted(?: \(core dumped\))?") + r"|"
        r"double free or corruption|"
        r"(?:free|malloc\w*|munmap_chunk|realloc)\(\): \w|corrupted (?:size|double-linked)|stack smashing detected|"
        r"pure virtual method called|libc\+\+abi(?:\.dylib)?: terminating|Trace/breakpoint trap|: +\d+ Aborted\b|Fatal Python error|"
        + _signal(6, "SIGABRT", "abort", "已放弃", "Abgebrochen") + "|"
        + _signal(5, "SIGTRAP", negative=False) + "|" + _signal(3, "SIGQUIT", negative=False) + "|" + _windows(0xC0000409, 0xC0000374),
        "native code called abort(), as torch does for an error in a thread of its own",
        "read what stands before it",
        alike="nccl_timeout and cuda_error, for which torch aborts: their words stand above",
        weight=ECHO,
    ),
    Failure(
        "failed_child", "crashed", YES, "unknown",
        r"ChildFailedError\b|ProcessExitedException\b|ProcessRaisedException\b|CalledProcessError\b|"
        r"failed \(exitcode: -?\d+\)|\bFAILED\b[ |]+\d+:\d+|State=FAILED\b|\bnon-?zero (?:exit )?(?:code|status)\b|"
        r"srun: error: .{0,120}(?:Exited with exit code|exited)|mpirun .{0,80}exited|exits with return code = [1-9]|"
        r"BAD TERMINATION OF|\b(?:[Kk]ernel (?:appears to have )?(?:died|crashed)|restarting kernel)\b|Trials did not complete|"
        r"\b[Pp]rocess (?:\w+ )?(?:is dead|has died|died|has crashed|crashed)\b|"
        r"\bCrashLoopBackOff\b|"
        r"\b(?:terminated|exited|crashed|failed) with (?:exit |return )?(?:code|status) [1-9]|\b[Ee]xit(?: code|Code|_code|"
        r" status)\"?[:=]? *[1-9]|"
        r"\b(?:AlgorithmError|ExecuteUserScriptError):|MPI_ABORT was invoked|Error executing job with overrides|"
        r"usually means the child failed|BackoffLimitExceeded|Back-off restarting failed container|\b(?:RayActor|ActorDied|"
        r"ActorUnavailable|"
        r"WorkerCrashed)Error\b|"
        r"A worker died or was killed while executing a task|EngineDeadError|[Ss]ee (?:root cause|stack trace) (?:\(above\)|above|"
        r"for the root cause)",
        "the launcher reports that a rank failed",
        "read the log of that rank; Ray keeps those of its workers in /tmp/ray/session_latest/logs",
        alike="nothing by itself: the rank's own end tells why",
        weight=ECHO,
    ),
    # What an operation of torch refused, by the property that it names: RuntimeError is its own.
    Failure(
        "device_mismatch", "crashed", AFTER_FIXING, "user_code",
        rf"^(?:\w+\.)*RuntimeError: (?=.{{0,300}}{_REFUSED}).{{0,300}}\bdevices?\b",
        "tensors of one operation are on different devices",
        "move both to one device: .to(device)",
    ),
    Failure(
        "dtype_mismatch", "crashed", AFTER_FIXING, "user_code",
        rf"^(?:\w+\.)*RuntimeError: (?=.{{0,300}}{_REFUSED}).{{0,300}}\b(?:dtypes?|(?:scalar|data|same) types?)\b",
        "tensors of one operation have different types",
        "cast one of them: .to(dtype); look at what autocast leaves out",
    ),
    Failure(
        "shape_mismatch", "crashed", AFTER_FIXING, "user_code",
        rf"^(?:\w+\.)*(?:Runtime|InvalidArgument)Error: (?=.{{0,300}}{_REFUSED}).{{0,300}}\b(?:sizes?|shapes?|dim(?:ension)?s?|"
        rf"dimensional\w*|\d-?D)\b|"
        rf"^(?:\w+\.)*(?:Type|Value)Error: (?=.{{0,300}}{_REFUSED}).{{0,300}}\bshapes?\b",
        "tensors of one operation have shapes that do not fit",
        "print the shapes before that line; the last batch of an epoch is often smaller",
    ),
    # Any other exception of Python's.
    Failure(
        "runtime_error", "crashed", AFTER_FIXING, "user_code",
        r"^(?:\w+\.)*RuntimeError\b",
        "the program or a library raised RuntimeError",
        _PYTHON,
        alike="any end with a name of its own: this one has none",
    ),
    Failure(
        "python_exception", "crashed", AFTER_FIXING, "user_code",
        r"^(?:\w+\.)*_?(?:[A-Z]\w*)?(?:Error|Exception|Failure|StopIteration|SystemExit)(?: \(see above for traceback\))?(?:: |$)|"
        r"^(?:\w+\.)+(?:error|"
        r"[A-Z]\w*(?:Invalid|File|Found)): |"
        r"^(?:\w+\.)+(?:\w*Timeout|TimeoutExpired)(?:: |$)|^(?:\w+\.)*(?:errors?|exceptions?|exc)\.[A-Z]\w*(?:: |$)|"
        r"^(?:SystemExit|StopIteration)\b|^[\w./-]{1,200}\.py: error: |: error: (?:unrecognized arguments: |"
        r"the following arguments are required: |argument [^:]{1,80}: )",
        "the program raised an exception",
        _PYTHON,
        alike="an exception that the program catches, logs and gets over",
        through=r" raised (?:\w+\.)*[A-Z]\w*(?:: |$)|[Pp]ickler?\.loads\(",  # whatever its name; of a message, which is no file
        instead_of=("checkpoint_mismatch",),
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
THROUGH = " raised "  # between the frame that an exception came through and the exception
_GUESSES = "There are some potential root causes"  # Ray, of a worker whose end it does not know: each signal is named behind it
# ``\w+Warning`` and what a log says of a try that it makes again is no end, and what was cancelled follows from one.
_NO_END = re.compile(
    r"\b\w*Warning\b|\bCancelledError\b|\bExceptionGroup: |"
    r"^(?:skipp|ignor)(?:ing|ed)\b|(?<!\bnot )\bretry(?:ing)?\b|\battempt \d+/\d+\b|\bclosing signal\b|"
    r"\b(?:may|might|can|could|will) (?:lead to|result in|cause|produce)\b|"
    r"\b(?:handl|register|install|bypass|ignor)\w*\b.{0,40}\bSIG[A-Z]+|\bSIG[A-Z]+ (?:signal )?handler",
    re.IGNORECASE,
)
NAMES = {one.name: one for one in reversed(FAILURES)}
# Says less than another word of the same rank: a process that dies, a data worker or a peer, closes its connections, too.
TORN = re.compile(
    r"\b(?:EOFError|ConnectionResetError|BrokenPipeError)\b|Connection (?:reset|closed) by (?:remote )?peer"
)


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], Failure], ...]:
    """Made when the first line is read: most commands read none, and it takes 10 ms."""
    return tuple((re.compile(one.pattern), one) for one in FAILURES)


@cache
def _frames() -> tuple[tuple[re.Pattern[str], Failure], ...]:
    return tuple((re.compile(one.through), one) for one in FAILURES if one.through)


def is_frame(line: str) -> bool:
    """True if a line is a frame in a traceback, as Python prints it."""
    return line.lstrip().startswith('File "')


@lru_cache(maxsize=4096)
def named(line: str) -> Failure | None:
    """The end that one line of a log tells of: without the prefix of its rank and its time, cut to ``LONGEST_LINE``."""
    line = line[:LONGEST_LINE].partition(_GUESSES)[0]
    if _NO_END.search(line):
        return None
    table = _frames() if is_frame(line) else _compiled()
    return next((one for pattern, one in table if pattern.search(line)), None)


def forms(cause: str) -> tuple[str, ...]:
    """The names of the ends of a cause, in the order of the table."""
    return tuple(dict.fromkeys(one.name for one in FAILURES if one.cause == cause))
