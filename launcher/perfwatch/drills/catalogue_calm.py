"""The drills that are busy or healthy: starting, compiling, saving, evaluating, and balanced training."""

from perfwatch.drills.describing import healthy
from perfwatch.drills.drill import Drill


def _busy(name: str, program: str, lookalike_of: str, summary: str, needs: tuple[str, ...] = ()) -> Drill:
    """Describe a long phase that is as it should be; its cause is the part of ``name`` before a hyphen."""
    return Drill(name, f"{program}.py", summary, "busy", (name.split("-")[0],), lookalike_of, needs=needs)


_BUSY: tuple[Drill, ...] = (
    _busy("starting", "starting_init", "endless_python", "a very large model is initialised before the first step"),
    _busy("starting-imports", "starting_imports", "endless_python", "thousands of modules are imported"),
    _busy("compiling", "compiling", "recompiling", "the first step of a compiled model", needs=("compiler",)),
    _busy("checkpointing", "checkpointing", "blocked_storage", "one very long checkpoint, shard by shard, with fsync"),
    _busy("evaluating", "evaluating", "skipping_steps", "a long validation without gradients"),
    _busy("evaluating-rollouts", "evaluating_rollouts", "endless_python", "a policy collects experience in Python"),
    _busy(
        "evaluating-decoder", "evaluating_decoder", "endless_python", "a validation decodes word by word in its model"
    ),
    _busy("waiting_on_work-pool", "pool_prepares", "starved_by_transforms", "a pool makes a cache before the training"),
    _busy("downloading", "downloading", "blocked_network", "pretrained weights arrive slowly but steadily"),
    _busy("computing_on_host", "computing_on_host", "held_gil", "one LAPACK call that takes minutes"),
)

_HEALTHY: tuple[Drill, ...] = (
    healthy("cpu_training", "endless_python", "forward, backward, step, on data in memory"),
    healthy("cpu_training_workers", "starved_by_transforms", "two workers with little to do, a model with plenty"),
    healthy("balanced", "slow_checkpoint", "workers, logs, validations and checkpoints, none of them too much"),
    healthy("training_with_evaluations", "evaluating", "each epoch ends with a second of validation"),
)

CALM_DRILLS: tuple[Drill, ...] = _BUSY + _HEALTHY
