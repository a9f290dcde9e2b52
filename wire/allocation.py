"""What the C library's allocator does with freed memory."""

from __future__ import annotations

from functools import cache

_KEPT_BLOCK = 16 << 20


@cache
def keep_freed_memory() -> None:
    """Make the C library keep freed memory for later allocations, up to 32 MiB in each heap.

    This is for the whole process, and has an effect with glibc only. By default glibc returns the
    end of a heap to the system when more than twice the largest freed block is free, initially
    128 KiB. Then the memory of every dropped entry would be returned, and that of every new one
    would be requested again, page by page.
    """
    bytes(_KEPT_BLOCK)  # zeroed by the system: its pages are never touched
