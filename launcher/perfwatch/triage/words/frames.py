"""What a Python frame means: the vocabulary of CPython's and torch's own functions, and which packages are the program itself.

Only the standard library, torch and widely used libraries are named here; a program's own names never are. A tag says in
what kind of work a thread is; a stack has the tags of all its frames.

A program may be installed as a package (``python -m pkg.train``, ``pkg-train``). Where a file lies does not tell: the package that the
interpreter was started with is the program, if it uses torch. Its files are marked by a ``/./`` before the package (as rsync marks
where a relative path begins): they open as before, and nothing takes them for a library's.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from perfwatch_probes import readings as r
from perfwatch_probes.readings import Frame, Stack

# The functions of CPython, torch and widely used libraries that say in what kind of work a thread is. A program's own are never here.

COLLECTIVES = frozenset(
    "all_reduce reduce broadcast all_gather all_gather_single all_gather_into_tensor _all_gather_base all_gather_object "
    "gather gather_object scatter scatter_object_list reduce_scatter reduce_scatter_single reduce_scatter_tensor "
    "_reduce_scatter_base all_to_all all_to_all_single barrier monitored_barrier broadcast_object_list "
    "all_gather_coalesced all_reduce_coalesced send recv isend irecv batch_isend_irecv send_object_list recv_object_list "
    "wait_tensor _verify_param_shape_across_processes _sync_params_and_buffers _sync_module_states _broadcast_tensors".split()
)

# Methods of mpi4py's communicators and requests, but for names that much else has as well.
MPI_COLLECTIVES = frozenset(
    "Allreduce allreduce Allgather Allgatherv allgather Alltoall Alltoallv Alltoallw alltoall Barrier Bcast bcast Gather "
    "Gatherv Scatter Scatterv Reduce Reduce_scatter Reduce_scatter_block Scan Exscan".split()
)
MPI_POINT_TO_POINT = frozenset("Recv Ssend Sendrecv sendrecv Probe Mprobe Wait Waitall Waitany Waitsome".split())
# Those count only where their owner is told for a communicator or a request.
MPI_COMMON = frozenset(
    "Send Bsend Rsend Isend Irecv send bsend ssend recv isend irecv probe wait waitall waitany barrier gather scatter reduce "
    "scan exscan".split()
)

# Programs that a library starts for itself, by their path or by the title that they give themselves: never work for the job.
SERVICES = (
    r"(?:^|/)(?:raylet|gcs_server)$|/ray/(?:dashboard|autoscaler/_private)/\w+\.py$"
    r"|/ray/_private/(?:log_monitor|runtime_env/agent/main)\.py$|^ray-dashboard|^ray::(?:DashboardAgent|RuntimeEnvAgent)"
)

# Folders of the standard library that the rows of VOCABULARY name.
STANDARD_PACKAGES = frozenset("asyncio concurrent ctypes http importlib json logging multiprocessing urllib".split())
# Rows of a tag, a pattern on the end of the file's path, and functions (*: any); a row may go on below.
# Read from torch 2.13 and CPython 3.10 to 3.13.
_ROWS = rf"""
loader_wait     torch/utils/data/dataloader\.py  _try_get_data _get_data
loader          torch/utils/data/dataloader\.py  *
sampler         torch/utils/data/dataloader\.py  _next_index
loader_start    torch/utils/data/dataloader\.py  __init__ _get_iterator _reset
loader_stop     torch/utils/data/dataloader\.py  _shutdown_workers __del__
worker          torch/utils/data/_utils/worker\.py  _worker_loop
fetch           torch/utils/data/_utils/fetch\.py  fetch
collate         torch/utils/data/_utils/collate\.py  *
pin_memory      torch/utils/data/_utils/pin_memory\.py  *
feeder          multiprocess(ing)?/queues\.py  _feed
feeder_join     multiprocess(ing)?/queues\.py  _finalize_join
pool_wait       multiprocess(ing)?/pool\.py  get wait next join map starmap apply imap
pool_wait       joblib/parallel\.py  _retrieve retrieve  # sleeps and looks again, a hundred times a second
pool_worker     multiprocess(ing)?/pool\.py  worker
serve           multiprocess(ing)?/resource_sharer\.py  _serve
shadow          torch/distributed/algorithms/join\.py  __exit__  # out of batches: it answers the others' collectives
pool_service    multiprocess(ing)?/pool\.py  _handle_workers _handle_tasks _handle_results _wait_for_updates
futures_wait    concurrent/futures/_base\.py  result wait as_completed exception result_iterator
futures_worker  (concurrent/futures/(thread|process)|loky/process_executor)\.py  _worker _process_worker
futures_service  (concurrent/futures/process|loky/process_executor)\.py  wait_result_broken_or_wakeup add_call_item_to_queue
                _queue_management_worker
mp_queue_get    multiprocess(ing)?/queues\.py  get
mp_queue_put    multiprocess(ing)?/queues\.py  put
mp_receive      multiprocess(ing)?/connection\.py  recv recv_bytes _recv _recv_bytes poll wait
mp_send         multiprocess(ing)?/connection\.py  send send_bytes _send _send_bytes
mp_join         multiprocess(ing)?/(process|popen_\w+)\.py  join wait poll
spawn_join      torch/multiprocessing/spawn\.py  join start_processes spawn
mp_lock         multiprocess(ing)?/synchronize\.py  *
thread_join     threading\.py  join _wait_for_tstate_lock
thread_wait     threading\.py  wait wait_for acquire __enter__
queue_get       /queue\.py  get
queue_put       /queue\.py  put
child_wait      /subprocess\.py  wait _wait _try_wait communicate _communicate run call check_call check_output
collective      torch/distributed/(distributed_c10d|_functional_collectives|_state_dict_utils|utils)\.py  {" ".join(sorted(COLLECTIVES))}
pickling        torch/distributed/distributed_c10d\.py  _object_to_tensor _tensor_to_object
collective      torch/nn/parallel/distributed\.py  _sync_buffers _sync_module_states _sync_params
rpc_shutdown    torch/distributed/rpc/api\.py  shutdown  # serves the others until all have come to it
rpc_call        torch/distributed/rpc/internal\.py  _run_function  # of another rank, in a thread of torch's
rpc_wait        torch/distributed/rpc/api\.py  rpc_sync
rpc_wait        torch/futures/__init__\.py  wait_all  # of calls that were begun by rpc_async
rendezvous      torch/distributed/rendezvous\.py  *
rendezvous      torch/distributed/elastic/rendezvous/.*\.py  *
rendezvous      torch/distributed/distributed_c10d\.py  init_process_group _new_process_group_helper _store_based_barrier new_group
                _new_group_with_tag
group_destroy   torch/distributed/distributed_c10d\.py  destroy_process_group _shutdown_backend
backward        torch/autograd/(graph|__init__)\.py  _engine_run_backward backward grad
backward        torch/_tensor\.py  backward
optimizer       torch/optim/(?!swa_utils)\w+\.py  *
clip            torch/nn/utils/clip_grad\.py  *
scaler          torch/amp/grad_scaler\.py  *
forward         torch/nn/modules/\w+\.py  _call_impl _wrapped_call_impl forward
forward         torch/autograd/function\.py  apply  # a function with a backward of its own
no_grad         torch/utils/_contextlib\.py  decorate_context  # a function that torch.no_grad decorates
convolution     torch/nn/modules/conv\.py  _conv_forward forward
anomaly         torch/autograd/anomaly_mode\.py|torch/fx/traceback\.py  *
format_stack    /traceback\.py  format_stack extract_stack extract walk_stack _extract_from_extended_frame_gen
profiler        torch/(profiler|autograd)/(profiler|profiler_util|_memory_profiler)\.py|/c?[pP]rofile\.py|/tracemalloc\.py  *
profiler        /trace\.py|coverage/pytracer\.py  *
save            torch/serialization\.py  save _save _legacy_save __exit__ write_record
save            torch/distributed/checkpoint/.*\.py  *
restore         torch/distributed/checkpoint/state_dict_loader\.py  *  # and whatever of that it calls
save            lightning(_fabric|/fabric)/(plugins/io/\w+|utilities/cloud_io)\.py  save_checkpoint _atomic_save remove_checkpoint
save            transformers/trainer\.py  _save_checkpoint save_model _save_optimizer_and_scheduler _save_rng_state
save            accelerate/(accelerator|checkpointing)\.py  save_state save_model save_accelerator_state
save            safetensors/\w+\.py  save_file save save_model
save            numpy/lib/_?npyio(_impl)?\.py  save savez _savez savez_compressed
model_copy      torch/nn/parameter\.py  __deepcopy__
load            torch/serialization\.py  load _load _legacy_load persistent_load load_tensor
load            safetensors/\w+\.py  load_file load load_model
load            transformers/modeling_utils\.py  from_pretrained _load_pretrained_model
init            torch/nn/init\.py  *
init            torch/nn/modules/\w+\.py  reset_parameters _reset_parameters
import          <frozen\simportlib\._bootstrap(_external)?>  *
compile         torch/__init__\.py  compile  # does nothing but fetch the compiler
# what runs a compiled function (eval_frame, runtime_wrappers, output_code) is not here: that is training
compile         torch/_dynamo/(convert_frame|symbolic_convert|output_graph|guards|bytecode_\w+|variables/\w+)\.py  *
compile         torch/_inductor/(compile_fx|graph|scheduler|lowering|ir|async_compile|codecache|cpp_builder|cpu_vec_isa)\.py  *
compile         torch/_inductor/(select_algorithm|pattern_matcher|fx_passes/\w+|codegen/.*)\.py  *
compile         torch/fx/experimental/.*\.py|triton/(compiler|backends)/.*\.py  *
compile         torch/_functorch/_aot_autograd/(graph_\w+|dispatch_and_compile_graph|traced_function_transforms|collect_\w+)\.py  *
compile         torch/_functorch/_aot_autograd/(jit_compile_runtime_wrappers|functional_utils)\.py  *
compile_worker  torch/_inductor/compile_worker/.*\.py  *
autotune        triton/(runtime/autotuner|testing)\.py  run _bench do_bench do_bench_cudagraph benchmark bench
autotune        torch/_inductor/(autotune_process|runtime/(triton_heuristics|benchmarking|coordinate_descent_tuner))\.py 
                autotune_to_one_config benchmark_all_configs bench benchmark benchmark_gpu benchmark_in_sub_process autotune
device_sync     torch/(cuda|accelerator)/(__init__|streams|graphs)\.py  synchronize
graph_replay    torch/cuda/graphs\.py  replay
device_sync     torch/_tensor\.py  __format__ __repr__ __contains__ __reversed__ __array__
device_sync     torch/_tensor_str\.py  *
device_copy     accelerate/utils/operations\.py  send_to_device
device_copy     torch/autograd/graph\.py  pack_to_cpu unpack_from_cpu  # save_on_cpu
saved_on_host   torch/autograd/graph\.py  pack_to_cpu unpack_from_cpu
device_copy     (lightning|pytorch_lightning)/.*\.py  move_data_to_device batch_to transfer_batch_to_device
empty_cache     torch/(cuda|accelerator)/memory\.py  empty_cache
attention       torch/nn/(modules/activation|attention/\w+)\.py  forward
attention       transformers/.*\.py  sdpa_attention_forward flash_attention_forward
eager_attention  transformers/.*\.py  eager_attention_forward
log             logging/__init__\.py  emit flush handle callHandlers
log_lock        logging/__init__\.py  acquire _acquireLock  # of a handler, which one thread uses at a time
log             tqdm/(std|utils)\.py  write display refresh status_printer print_status fp_write
log             rich/console\.py  print _write_buffer
picture         (PIL/\w*Image\w*|torchvision/utils|matplotlib/(figure|pyplot|backends/.*)|imageio/.*|cv2/.*)\.py  save _save
                _encode_tile save_image savefig print_figure print_png imwrite mimwrite mimsave
tracker         (wandb/.*|mlflow/.*|tensorboardX/\w+|torch/utils/tensorboard/\w+|comet_ml/.*|clearml/.*)\.py  *
exit            /threading\.py  _shutdown
exit            multiprocess(ing)?/(util|process)\.py  _exit_function
exit            concurrent/futures/(thread|process)\.py  _python_exit
exit            /logging/__init__\.py  shutdown
exit            /weakref\.py  _exitfunc
debugger        /(pdb|bdb|cmd|ipdb|pudb)(/__main__)?\.py|/IPython/.*debugger\.py|/debugpy/.*\.py  *
prompt          /(cmd|pdb|ipdb|pudb|code|debugger|interactiveshell)\.py  cmdloop _cmdloop interaction interact mainloop
prompt          /debugpy/.*\.py  do_wait_suspend _do_wait_suspend wait_for_client
manager         multiprocess(ing)?/managers\.py  serve_forever serve_client accepter
file_lock       (filelock/.*|portalocker/\w+|fasteners/\w+)\.py  *
file_lock       torch/utils/file_baton\.py  wait
retry           (tenacity/\w+|backoff/\w+|-packages/retrying|urllib3/util/retry|-packages/retry/\w+)\.py  *
http            (urllib/request|http/client|urllib3/\w+|requests/\w+|aiohttp/\w+|httpx/.*|fsspec/.*|botocore/\w+)\.py  *
ssl             /(ssl|socket)\.py  *
gc              /gc\.py  *
selector        /selectors\.py  select
asyncio         asyncio/\w+\.py  *
between_calls   ray/_private/worker\.py  main_loop  # of an actor: its calls run inside of it
remote_get      ray/_private/worker\.py  get get_objects wait
remote_data     ray/data/(iterator|dataset|_internal/block_batching/\w+)\.py  *
train_function  ray/train/v2/_internal/execution/worker_group/thread_runner\.py  _run_target
train_function  ray/air/_internal/util\.py  run
monitor         tqdm/_monitor\.py|torch/distributed/elastic/timer/.*\.py|ray/.*\.py|wandb/.*\.py  *
"""
VOCABULARY = tuple(
    row.partition("  #")[0].split(maxsplit=2)
    for row in _ROWS.replace("\n    ", "").splitlines()
    if row and not row.startswith("#")
)

# The second is dill's copy of it, which datasets uses.
BOOTSTRAPS = ("multiprocessing/process.py", "multiprocess/process.py")
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")

_TABLE = tuple(
    (tag, re.compile(rf"(?:^|/)?(?:{pattern})$"), None if functions == "*" else frozenset(functions.split()))
    for tag, pattern, functions in VOCABULARY
)

# Where packages lie: a folder that pip fills, or the unpacked wheels of a PEX.
_PACKAGES = r"(?:/(?:site|dist)-packages|\.whl)/"
# torch wherever it lies: a checkout that it was built in, a folder that was filled by ``pip install --target``.
_TORCH_FILES = (
    r"/pytorch/torch/|/torch/(?:_tensor|_ops|serialization|cuda/\w+|amp/\w+|nn/(?:functional|modules/\w+|parallel/\w+)|autograd/\w+"
    r"|optim/(?:optimizer|lr_scheduler|adamw?|sgd)|utils/data/(?:dataloader|_utils/\w+)"
    r"|distributed/(?:distributed_c10d|run|fsdp/\w+)|_dynamo/\w+|_inductor/\w+)\.py$"
)
# CPython's library, packages, and code without a file; not what is marked (``/./``) as the program's own.
_LIBRARY = re.compile(
    rf"^(?!.*/\./).*(?:/lib(?:64)?/python\d|{_PACKAGES}|{_TORCH_FILES})|^<(?:frozen|built|__array)|^$"
)
_TORCH = re.compile(rf"{_PACKAGES}torch/|{_TORCH_FILES}")
_TENSORS = re.compile(
    rf"{_PACKAGES}(torchvision/(ops|models)|torchmetrics|torch_\w+|einops|kornia/(geometry|losses|metrics)|gpytorch|botorch|pyro"
    r"|torchdiffeq|e3nn|timm/(models|layers|loss)|transformers/models|diffusers/(models|schedulers)|monai/(losses|networks|metrics))/"
)
_STANDARD = re.compile(r"/lib(64)?/python3?[\d.]*/(?!site-packages|dist-packages)|^<(frozen|built|__array)|^$")
_INSTALLED = re.compile(rf"{_PACKAGES}(?:\./)?([^/.]+)")
_PREFIX = re.compile(rf"^(.*{_PACKAGES})(?:\./)?([^/]+)")
_COMMAND = re.compile(r"/bin/[^/.]+$")  # what pip makes of an entry point
_RUNNER = re.compile(r"(^|/)runpy\.py$|^<frozen runpy>$")
# They start a program, serve one, or are what it is written with: being started with one does not make it the program.
RUNNERS = frozenset(
    "torch accelerate deepspeed lightning lightning_fabric pytorch_lightning composer transformers ray dask distributed "
    "horovod mpi4py submitit torchx determined sagemaker_training joblib loky ipykernel ipykernel_launcher "
    "colab_kernel_launcher IPython nbclient papermill marimo streamlit gradio uvicorn gunicorn vllm sglang celery prefect "
    "dagster airflow metaflow kedro pytest _pytest debugpy pydevd coverage memory_profiler line_profiler viztracer wandb "
    "mlflow triton numpy".split()
)
# An entry point is often theirs: they read the command line and call the program.
PARSERS = frozenset(
    "click rich_click asyncclick cloup typer fire absl hydra tyro jsonargparse cyclopts plac invoke".split()
)


def short_name(function: str) -> str:
    """The bare function name: newer interpreters report ``Class.method`` and ``f.<locals>.g``."""
    return function.rsplit(".", 1)[-1]


@lru_cache(maxsize=8192)
def tags_of(function: str, file: str) -> frozenset[str]:
    """The tags of one frame.

    A program's own file has none, even if it is called as one of the standard library. A package is known by its folder and file,
    wherever it lies: ``pip install --target`` fills a folder of any name.
    """
    name = short_name(function)
    if name == "<module>":  # a module that is being imported does not do its work yet
        return frozenset()
    own = not _of_library(file)
    return frozenset(
        tag
        for tag, pattern, names in _TABLE
        if (names is None or name in names)
        and (found := pattern.search(file)) is not None
        and not (own and _named_as_standard(found[0]))
    )


def _named_as_standard(path: str) -> bool:
    """True if the end of a path is a mere file, or lies in a folder that is called as a package of the standard library."""
    folder, _, file = path.strip("/").partition("/")
    return not file or folder in STANDARD_PACKAGES


def own_frames(stack: Stack) -> tuple[Frame, ...]:
    """The frames that a process pushed itself: a forked worker keeps its parent's below ``BaseProcess._bootstrap``."""
    return _own(stack.frames)


@lru_cache(maxsize=4096)
def _own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    for index, frame in enumerate(frames):
        if short_name(frame.function) == "_bootstrap" and frame.file.endswith(BOOTSTRAPS):
            return frames[: index + 1]
    return frames


@lru_cache(maxsize=4096)
def _tags(frames: tuple[Frame, ...]) -> frozenset[str]:
    found = frozenset().union(*(tags_of(frame.function, frame.file) for frame in frames)) if frames else frozenset()
    # Who turns its part of a collective into bytes works: it is the others that wait.
    return found - {"collective"} if "pickling" in found else found


def tags(stack: Stack) -> frozenset[str]:
    """The tags of all frames that the process pushed itself."""
    return _tags(own_frames(stack))


def inner_frames(stack: Stack) -> tuple[Frame, ...]:
    """The library frames that the program's innermost own frame called, innermost first."""
    return _inner(own_frames(stack))


@lru_cache(maxsize=4096)
def _inner(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    own = next((index for index, frame in enumerate(frames) if is_user(frame)), len(frames))
    return frames[:own]


def inner_tags(stack: Stack) -> frozenset[str]:
    """Their tags: what the thread does at this moment."""
    return _tags(inner_frames(stack))


def is_user(frame: Frame) -> bool:
    """Code of the program itself: not the standard library, not an installed package."""
    return not _of_library(frame.file)


@lru_cache(maxsize=8192)  # asked for each frame of each stack by every rule: most of what a verdict costs
def _of_library(file: str) -> bool:
    return _LIBRARY.search(file) is not None


def is_standard(frame: Frame) -> bool:
    """Code of the standard library."""
    return _STANDARD.search(frame.file) is not None


def package_of(frame: Frame) -> str | None:
    """The installed package that a frame is of; None for the program's own code and the standard library."""
    return None if "/./" in frame.file else installed_as(frame)


def installed_as(frame: Frame) -> str | None:
    """The installed package that a frame is of, be it the program itself; None outside of packages."""
    found = _INSTALLED.search(frame.file)
    return found.group(1) if found else None


def _is_written(frame: Frame) -> bool:
    """The program's own and in a file: what was made by ``exec``, a manager's proxy say, nobody can look at."""
    return is_named(frame) and not frame.file.startswith("<")


def is_named(frame: Frame) -> bool:
    """Code of the program itself that has a name to be called by."""
    return is_user(frame) and short_name(frame.function) not in COMPREHENSIONS


def of_torch(frame: Frame) -> bool:
    """Code of torch itself."""
    return _TORCH.search(frame.file) is not None


def of_tensors(frame: Frame) -> bool:
    """Code of torch, or of a library that is written in its operations: what takes time there may run on a GPU."""
    return of_torch(frame) or _TENSORS.search(frame.file) is not None


def steps_torch(frame: Frame) -> bool:
    """True if a frame is the ``step`` of one of torch's own optimizers: what is above it was asked for by that."""
    return (
        of_torch(frame) and short_name(frame.function) == "step" and "optimizer" in tags_of(frame.function, frame.file)
    )


def inside(frame: Frame, stack: Stack) -> bool:
    """True if a stack is in the function of some frame, or in what that calls."""
    return any((one.function, one.file) == (frame.function, frame.file) for one in stack.frames)


def user_frames(stack: Stack) -> tuple[Frame, ...]:
    """The program's own frames, innermost first; where there is none, what ``user_frame`` takes instead."""
    return _users(own_frames(stack))


@lru_cache(maxsize=4096)
def _users(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    own = tuple(frame for frame in frames if is_user(frame))
    if any(map(_is_written, own)):
        own = tuple(frame for frame in own if not frame.file.startswith("<"))
    instead = None if own else _user(frames)
    return own if instead is None else (instead,)


def user_frame(stack: Stack) -> Frame | None:
    """The innermost frame of the program's own code; failing that, the innermost one outside the standard library and torch.

    A comprehension, to which older interpreters give a frame of its own, stands for the function around it. Of a forked worker those
    below its own start are its parent's: where that was when it forked.
    """
    return _user(own_frames(stack))


@lru_cache(maxsize=4096)
def _user(frames: tuple[Frame, ...]) -> Frame | None:
    for takes in (_is_written, is_named, is_user):
        for frame in frames:
            if takes(frame):
                return frame
    for frame in frames:
        if not is_standard(frame) and not of_torch(frame):
            return frame
    return frames[0] if frames else None


def collective_name(stack: Stack) -> str | None:
    """The collective that this stack is in ("all_reduce"), "backward" for a gradient reduction, or None."""
    outer = None
    for frame in stack.frames:
        if "collective" in tags_of(frame.function, frame.file):
            outer = short_name(frame.function)
    return outer


def show(frame: Frame | None) -> str | None:
    """``function (file:line)`` with the file's last part, as a person would say it."""
    if frame is None:
        return None
    return f"{short_name(frame.function)} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"


def any_tag(found: Iterable[str], *wanted: str) -> bool:
    """True if one of the wanted tags is there."""
    return not frozenset(wanted).isdisjoint(found)


class Program:
    """The packages of one job that are the program itself, as far as its main threads have told."""

    def __init__(self) -> None:
        self._prefixes: frozenset[str] = frozenset()
        self._in_files = False  # a process of the job runs a program in files of its own: packages only start it

    def learns(self, stack: Stack, has_torch: Callable[[int], bool]) -> bool:
        """True if this stack changes what is known to be the program: what was read before must be marked anew, too.

        has_torch: by pid, whether the process has torch loaded; a service of a library in the job has not.
        """
        if stack.tid != stack.pid or self._in_files or not stack.frames:
            return False
        frames = own_frames(stack)
        in_files, started_with = _started_with(frames)
        if not in_files and started_with <= self._prefixes:
            return False
        if not any(map(of_torch, frames)) and not has_torch(stack.pid):
            return False
        known, self._in_files = self._prefixes, in_files
        self._prefixes = frozenset() if in_files else self._prefixes | started_with
        return self._prefixes != known

    @property
    def marks(self) -> bool:
        """True if any package is the program."""
        return bool(self._prefixes)

    def marked(self, reading: r.Reading) -> r.Reading:
        """A stack or a line of source with the program's own files marked, and no others; any other reading as it is."""
        if isinstance(reading, Stack):
            frames = _marked(reading.frames, self._prefixes)
            return reading if frames is reading.frames else msgspec.structs.replace(reading, frames=frames)
        if isinstance(reading, r.SourceLine):
            file = _marked_file(reading.file, self._prefixes)
            return reading if file == reading.file else msgspec.structs.replace(reading, file=file)
        return reading


@lru_cache(maxsize=4096)
def _started_with(frames: tuple[Frame, ...]) -> tuple[bool, frozenset[str]]:
    """True if the interpreter was started with a file of the program's own, else the packages (folders or files) it was started with."""
    modules = [place for place, frame in enumerate(frames) if short_name(frame.function) == "<module>"]
    if not modules or frames[modules[-1]].file.startswith("<"):
        return False, frozenset()
    began = modules[-1]
    command = _COMMAND.search(frames[began].file) is not None
    if not command and _in_a_file(frames[began]):
        return True, frozenset()
    if any(_in_a_file(frame) for frame in frames[:began]):
        return False, frozenset()  # what a package runs here
    begins = [place for place in modules if place == began or _RUNNER.search(frames[place + 1].file)]
    names = [_named(frames[place]) for place in begins]
    if command:
        called = (_named(frame) for frame in reversed(frames[:began]))
        names += [next((one for one in called if one[0] and one[1] not in PARSERS), ("", ""))]
    return False, frozenset(prefix for prefix, name in names if prefix and name not in RUNNERS)


def _named(frame: Frame) -> tuple[str, str]:
    """Prefix of all files of the package that a frame lies in, and its name; both empty outside of packages."""
    found = _PREFIX.match(frame.file)
    return (found.group(1) + found.group(2), found.group(2).removesuffix(".py")) if found else ("", "")


def _in_a_file(frame: Frame) -> bool:
    """True if a frame is of a file of the program's own, in no package."""
    return is_user(frame) and not _PREFIX.match(frame.file) and not frame.file.startswith("<")


@lru_cache(maxsize=4096)
def _marked(frames: tuple[Frame, ...], prefixes: frozenset[str]) -> tuple[Frame, ...]:
    if not any(_marked_file(frame.file, prefixes) != frame.file for frame in frames):
        return frames
    return tuple(msgspec.structs.replace(frame, file=_marked_file(frame.file, prefixes)) for frame in frames)


@lru_cache(maxsize=8192)
def _marked_file(file: str, prefixes: frozenset[str]) -> str:
    found = _PREFIX.match(file)
    if found is None:
        return file
    mark = "./" if found.group(1) + found.group(2) in prefixes else ""
    return found.group(1) + mark + file[found.start(2) :]
