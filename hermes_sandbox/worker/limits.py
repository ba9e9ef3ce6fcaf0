"""The rlimits: one table, applied by init before it starts the worker, so that the whole tree inherits them.

RLIMIT_NPROC counts inside the sandbox's own user namespace, which is why init sets it and nobody before; as real root,
or outside a user namespace, it would count nothing or too much, and the runner does not ask for it.
"""

import resource

# field of wire.Boot -> the rlimit that enforces it
TABLE = (
    ("file_size", resource.RLIMIT_FSIZE),
    ("open_files", resource.RLIMIT_NOFILE),
    ("pids", resource.RLIMIT_NPROC),
    ("memory_data", resource.RLIMIT_DATA),
)
OWN_PROCESSES = 1  # init itself counts as one of the sandbox's processes


def apply(boot):
    """Set every limit that `boot` (a dict with the fields of wire.Boot) names, and allow no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, limit in TABLE:
        value = boot.get(name)
        if value is None:
            continue
        if limit == resource.RLIMIT_NPROC:
            value += OWN_PROCESSES
        hard = resource.getrlimit(limit)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(limit, (value, value))


def private_fds():
    """The number from which on the protocol's descriptors live: out of the way of tools that count from 3."""
    return min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 16)


class CpuLimit:
    """A call's cpu_time as the worker's own RLIMIT_CPU: a backstop for one process; the tree's sum is watched from
    outside."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        if self.seconds is not None:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            # The kernel counts whole seconds of the process's life, so one more than asked: the watch is the exact one.
            soft = int(usage.ru_utime + usage.ru_stime + self.seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))

    def __exit__(self, *_exc):
        if self.seconds is not None:
            free_cpu()


def free_cpu():
    """Take off what a CpuLimit that is in force set, for a process that is not the call's."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
