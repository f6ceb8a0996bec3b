"""Host memory between calls: what glibc does with a picture that was freed."""

from __future__ import annotations

import ctypes
import platform

# malloc.h of glibc
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Let this process keep freed host memory for the next call: steps on large pictures on the CPU get faster.

    The allocator of Linux maps every piece of 32 MiB or more afresh and gives it back when it is freed; smaller ones it
    gives back once twice the largest of them lie free at the end of its memory. The kernel then clears all pages again
    at their first touch, in every step, which at 2048 x 2048 pixels takes longer than all rendering. After this call
    memory that was freed stays with the process and is used again.

    It holds for the whole process, Python and torch included, until it ends: call it in a program's own first lines,
    not in a library. The first few steps are as slow as before, until there is a hole of every size, and the process
    then holds what it has held at its peak and some more (910 MB instead of 655 in a step at 2048 x 2048). The
    environment variables MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=100000000000 do the same from outside. Without
    effect where another allocator (jemalloc, tcmalloc) was loaded, and on the memory of CUDA devices.

    Raises:
        RuntimeError: on a system without glibc (macOS, Windows, musl), or if it refuses.

    Source:
        Linux manual, mallopt(3).
    """
    if platform.libc_ver()[0] != "glibc":
        raise RuntimeError(
            f"keep_freed_memory: the C library must be glibc, got {platform.libc_ver()[0] or platform.system()}. "
            "Leave the call out here."
        )
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1)):
        if mallopt(ctypes.c_int(option), ctypes.c_int(value)) != 1:
            raise RuntimeError(f"keep_freed_memory: mallopt({option}, {value}) must succeed, got a refusal of glibc.")
