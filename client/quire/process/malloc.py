"""How glibc gets memory from the kernel and gives it back: for large messages the largest single knob."""

from __future__ import annotations

import ctypes
from typing import Final

# <malloc.h>
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8


def tune(
    *,
    mmap_threshold_bytes: int | None = None,
    trim_threshold_bytes: int | None = None,
    top_pad_bytes: int | None = None,
    arenas_max: int | None = None,
) -> bool:
    """Set what is given, for this process, at its start. False if the C library is another or takes not all of it.

    Blocks below `mmap_threshold_bytes` come from the heap and are reused, instead of fresh zeroed pages each time;
    `trim_threshold_bytes` of free heap are kept, and it grows by `top_pad_bytes` more than needed. All three are paid
    for in resident memory, up to `trim_threshold_bytes`. `arenas_max` bounds how many heaps threads get.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    wanted = (
        (_MMAP_THRESHOLD, mmap_threshold_bytes),
        (_TRIM_THRESHOLD, trim_threshold_bytes),
        (_TOP_PAD, top_pad_bytes),
        (_ARENA_MAX, arenas_max),
    )
    taken = [mallopt(option, value) for option, value in wanted if value is not None]
    return all(answer == 1 for answer in taken)
