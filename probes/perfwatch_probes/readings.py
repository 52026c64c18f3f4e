"""Every reading that a probe can make: the schema of the recording.

Frozen, typed, with units in the names. ``None`` always means "not known", never zero. Counters are cumulative, as the kernel
keeps them: differences are triage's business. Times called ``*_ago_seconds`` count back from the moment of the reading.
"""

from perfwatch_probes.file_readings import FailureLine, LogSpan, SavedCheckpoint
from perfwatch_probes.gpu_readings import (
    Gpu,
    GpuActivity,
    GpuBinding,
    GpuErrors,
    GpuEvent,
    GpuProcess,
    GpuSample,
    GpuSilence,
)
from perfwatch_probes.group_readings import BATCH, UNANSWERED, Communicator, GroupMember, Operation, RecordedGroup
from perfwatch_probes.job_readings import (
    APPEARS,
    COUNT,
    DROPPED,
    FILE_TESTS,
    FILLED,
    FINITE,
    FLAG,
    GATHERED,
    GIVING,
    GOES,
    PERTURBED,
    VALUE,
    Affinity,
    Frame,
    NativeProfile,
    PolledFile,
    Process,
    ProcessEnded,
    ProcessUsage,
    Software,
    SourceLine,
    Stack,
    StackFailure,
    Steps,
    Thread,
    ThreadError,
    Traceback,
    Wait,
)
from perfwatch_probes.reading import Reading
from perfwatch_probes.surrounding_readings import (
    Cgroup,
    Descriptor,
    Disk,
    FileGrowth,
    Host,
    KernelMessage,
    Network,
    Pressure,
    ProbeCall,
    Socket,
    Traffic,
)
from perfwatch_probes.trace_readings import CaptureWindow, HostShare, KernelShare, SyncPoint, TorchTrace

ANY_READING = (
    Process
    | ProcessEnded
    | ProcessUsage
    | Software
    | Thread
    | Descriptor
    | FileGrowth
    | Stack
    | StackFailure
    | SourceLine
    | NativeProfile
    | Steps
    | ThreadError
    | Traceback
    | Host
    | Cgroup
    | Affinity
    | Disk
    | Network
    | Traffic
    | KernelMessage
    | Gpu
    | GpuSample
    | GpuActivity
    | GpuErrors
    | GpuEvent
    | GpuProcess
    | GpuBinding
    | GpuSilence
    | Communicator
    | RecordedGroup
    | ProbeCall
    | CaptureWindow
    | TorchTrace
    | FailureLine
    | LogSpan
    | SavedCheckpoint
)

__all__ = [
    "ANY_READING",
    "APPEARS",
    "BATCH",
    "COUNT",
    "DROPPED",
    "FILE_TESTS",
    "FILLED",
    "FINITE",
    "FLAG",
    "GATHERED",
    "GIVING",
    "GOES",
    "PERTURBED",
    "UNANSWERED",
    "VALUE",
    "Affinity",
    "CaptureWindow",
    "Cgroup",
    "Communicator",
    "Descriptor",
    "Disk",
    "FailureLine",
    "FileGrowth",
    "Frame",
    "Gpu",
    "GpuActivity",
    "GpuBinding",
    "GpuErrors",
    "GpuEvent",
    "GpuProcess",
    "GpuSample",
    "GpuSilence",
    "GroupMember",
    "Host",
    "HostShare",
    "KernelMessage",
    "KernelShare",
    "LogSpan",
    "NativeProfile",
    "Network",
    "Operation",
    "PolledFile",
    "Pressure",
    "ProbeCall",
    "Process",
    "ProcessEnded",
    "ProcessUsage",
    "Reading",
    "RecordedGroup",
    "SavedCheckpoint",
    "Socket",
    "Software",
    "SourceLine",
    "Stack",
    "StackFailure",
    "Steps",
    "SyncPoint",
    "Thread",
    "ThreadError",
    "TorchTrace",
    "Traceback",
    "Traffic",
    "Wait",
]
