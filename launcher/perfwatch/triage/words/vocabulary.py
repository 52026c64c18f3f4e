"""The functions of CPython, torch and widely used libraries that say in what kind of work a thread is.

A program's own names are never here.
"""

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
file_lock       (filelock/\w+|portalocker/\w+|fasteners/\w+)\.py  *
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
