"""Whether this process's allocator gives memory back to the system, which decides what is fast.

XLA on CPUs asks for the memory of a program's results and temporaries each time it runs. With
glibc's defaults large blocks come fresh from the system, and every page of them costs a fault on
the first write: more time than copying into it takes.
"""

import os

import jax

_ALLOCATORS = ("jemalloc", "mimalloc", "tcmalloc")


def keeps_memory() -> bool:
    """Whether large blocks come from memory that was used before, as far as can be told.

    That is so with glibc's `MALLOC_MMAP_MAX_=0` and a `MALLOC_TRIM_THRESHOLD_`, and with a
    preloaded jemalloc, mimalloc or tcmalloc. Of several processes nobody knows about all of them,
    and their programs have to be the same.
    """
    if jax.process_count() > 1:
        return False
    preloaded = os.environ.get("LD_PRELOAD", "")
    never_mapped = os.environ.get("MALLOC_MMAP_MAX_") == "0"
    never_trimmed = os.environ.get("MALLOC_TRIM_THRESHOLD_", "0") != "0"
    return (never_mapped and never_trimmed) or any(name in preloaded for name in _ALLOCATORS)
