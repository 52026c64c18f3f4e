"""What of perfwatch runs inside training. ``perfwatch run`` puts its folder first on PYTHONPATH: nothing else may lie there.

Python imports ``sitecustomize`` by itself at start. This one does its own part, then runs the one that it shadows.
Standard library only (Python 3.8 to 3.14), nothing of perfwatch but the other modules of ``agent``, which are loaded by path where they are
needed, no thread, no output; no failure of its own reaches the program. Without PERFWATCH_AGENT_DIR it only chains. What it
does, and when:

- at start: take back what a parent has armed for itself, and where Yama restricts ptrace (PERFWATCH_TRACER_PID is set)
  declare that process as tracer;
- when torch is first imported: see to it that a crash leaves ``crash-PID.txt`` in that folder, and a thread that ends with an error
  ``thread-PID-TID.txt``, the first 16 of a process (``last_words.py``); let torch's flight recorder be asked there, if the folder
  is there for this process and the program has not armed it itself (``recorder.py``);
- at exit, if a capture of this process has just opened a window (``window-PID`` is there): let it end first, for a
  process whose profiler records while it is torn down may crash (seen with torch 2.13: SIGSEGV after the last line);
- when torch.optim is complete: register a global hook that runs after every ``Optimizer.step`` (``steps.py``);
- under ``perfwatch run --arm ncu`` or ``--arm ncu-attach`` (PERFWATCH_KERNEL_WINDOW is set): open windows for Nsight Compute
  between two steps; for the latter load its library (PERFWATCH_KERNEL_LIBRARY) here. That is in ``kernel_window.py``;
- when a process begins to use CUDA (PERFWATCH_PROFILER is set): let its profiler ask the endpoint of ``perfwatch run``.
  With KINETO_USE_DAEMON in the environment torch does so at its import, which initialises CUDA: children that a process
  forks then could not use CUDA any more, even where it never does itself. That is in ``profiler.py``;
- at the first step of a process: create ``steps-PID`` there (a DataLoader worker never steps, and so has none); after a step,
  once a second, ask torch whether anomaly detection and cuDNN's benchmark are on, and write that there (``modes.py``).

``crash-PID.txt``, ``thread-PID-TID.txt``: the traceback as Python prints it, cut to its last 16 KiB.
``window-PID``: made by a capture: seconds of CLOCK_MONOTONIC until which an exit may be held up, as text.
"""

import os
import sys

_OLDEST = (3, 8)  # an older one, which a job may start as well, only chains
_LONGEST_EXIT_SECONDS = 45.0  # of the longest window and its trace
_RECORDER = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE")
_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h; not inherited by fork, kept by exec


def _part(name):
    """A module of ``agent``, by its path: in this folder, which is first on PYTHONPATH, it would hide the program's own."""
    from importlib.util import module_from_spec, spec_from_file_location

    agent = os.path.dirname(os.path.dirname(__file__))
    spec = spec_from_file_location("_perfwatch_" + name, os.path.join(agent, name + ".py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _arm_profiler():
    try:
        _part("profiler").arm(_TorchArrives.directory)
    except Exception:  # the file is not there: the profiler is not asked
        pass


def _kernel_window(directory):
    """The hook that opens windows for Nsight Compute; None where its library cannot be loaded."""
    module, library = _part("kernel_window"), os.environ.get("PERFWATCH_KERNEL_LIBRARY")
    return module.by_library(directory, library) if library else module.by_range(directory)


def _end_windows(directory):
    """At exit: while a capture records this process, go on stepping for it (a window may count steps), not for long."""
    import time

    path = os.path.join(directory, "window-%d" % os.getpid())
    try:
        with open(path) as file:
            until = min(float(file.read(32)), time.monotonic() + _LONGEST_EXIT_SECONDS)
        tracker = getattr(sys.modules.get("torch.autograd.profiler"), "KinetoStepTracker", None)
        while time.monotonic() < until and os.path.exists(path):
            for _ in range(20 if tracker is not None else 0):
                tracker.increment_step("Optimizer")
            time.sleep(0.02)
    except Exception:
        pass  # no window, which is the rule


class _TorchArrives:
    """A finder that finds nothing: it is asked for every module, and so hears of torch without importing it.

    It stays on ``sys.meta_path``: taking it out while another thread walks the list makes that thread skip a finder.
    """

    directory = None
    hooked = False
    words = None

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Always None: "ask the next finder"."""
        if cls.hooked:  # no ``try``: what a handler of signals raises here is the program's
            return None
        try:
            if name[:5] == "torch":
                cls._look(name)
        except Exception:
            cls.hooked = True  # something is other than we know it: leave this process alone
        return None

    @classmethod
    def _look(cls, name):
        if name == "torch" and cls.words is None:
            cls.words = _part("last_words")
            cls.words.keep(cls.directory)
            import atexit

            atexit.register(_end_windows, cls.directory)
            try:
                _part("recorder").arm(cls.directory)
            except Exception:  # the file is not there: the recorder is not asked
                pass
        # torch.optim imports its optimizers after torch.optim.optimizer: the next module that is asked for is in time.
        module = sys.modules.get("torch.optim.optimizer")
        if module is not None and hasattr(module, "Optimizer"):
            cls.hooked = True
            module.register_optimizer_step_post_hook(_part("steps").counter(cls.directory, _part))
            cls.words.keep_in_children(cls.directory)
            if os.environ.get("PERFWATCH_KERNEL_WINDOW"):
                window = _kernel_window(cls.directory)
                if window is not None:
                    module.register_optimizer_step_post_hook(window)
            if os.environ.get("PERFWATCH_PROFILER"):
                sys.modules["torch.cuda"]._lazy_call(_arm_profiler)


def _permit_tracer(pid):
    """Let perfwatch and its children read this process where Yama would refuse; again after each fork."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    declare = lambda: prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)  # noqa: E731
    declare()
    os.register_at_fork(after_in_child=declare)


def _arm():
    directory = os.environ.get("PERFWATCH_AGENT_DIR")
    if not directory or hasattr(sys, "_perfwatch_armed") or sys.version_info < _OLDEST:
        return
    sys._perfwatch_armed = True  # a second copy further down PYTHONPATH only chains
    if any(name in os.environ for name in _RECORDER):
        _part("recorder").disarm(directory)
    tracer = os.environ.get("PERFWATCH_TRACER_PID", "")
    if tracer.isdecimal():
        try:
            _permit_tracer(int(tracer))
        except Exception:
            pass  # py-spy may read less then, and doctor says so
    _TorchArrives.directory = directory
    sys.meta_path.insert(0, _TorchArrives)


def _chain():
    """Import the ``sitecustomize`` that this file shadows, as if we were not here: its errors are its own."""
    here = os.path.dirname(__file__)
    ours = sys.modules.pop("sitecustomize", None)
    while here in sys.path:
        sys.path.remove(here)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        # A Python that tells no name is silent about all of them.
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # there is no other one
    finally:
        sys.path.insert(0, here)  # as children of this process will see it; theirs may have changed the rest


try:
    _arm()
except Exception:
    pass  # whatever it is: the program begins as it would without us
_chain()
