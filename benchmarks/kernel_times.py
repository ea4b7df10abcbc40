"""What the GPU itself takes for kernels, copies and fills, read with CUPTI: no launches, no gaps between kernels."""

from __future__ import annotations

import atexit
import ctypes
import functools
import glob
import struct
import sys
from collections.abc import Callable
from typing import Any

# Kinds of records; all three have their start and end, in nanoseconds, at the same place.
KINDS = MEMCPY, MEMSET, CONCURRENT_KERNEL = 1, 2, 10
FLUSH_FORCED = 1  # buffers that are not full, too
START_AND_END = struct.Struct("<2Q")
START_OFFSET = 16
BUFFER_BYTES = 1 << 20


def library_path() -> str:
    """Return the CUPTI that JAX or torch has loaded, or one that is installed."""
    with open("/proc/self/maps") as maps:
        loaded = [line.split(maxsplit=5)[5].strip() for line in maps if "libcupti.so" in line]
    if loaded:
        return loaded[0]
    folders = [f"{p}/nvidia/*/lib" for p in sys.path] + ["/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64"]
    for folder in folders:
        for path in sorted(glob.glob(f"{folder}/libcupti.so*")):
            return path
    raise FileNotFoundError("CUPTI is needed to time kernels: install nvidia-cuda-cupti")


class KernelTimes:
    """Collects the records of everything that runs on the GPU from the first use on."""

    def __init__(self) -> None:
        self.cupti = ctypes.CDLL(library_path())
        self.buffers: dict[int, Any] = {}
        self.spans: list[tuple[int, int]] = []
        address_and_sizes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
        give = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), *address_and_sizes[1:])
        take = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )
        self.callbacks = give(self._give_buffer), take(self._take_buffer)  # kept for as long as CUPTI calls them
        self._call("cuptiActivityRegisterCallbacks", *self.callbacks)
        for kind in KINDS:
            self._call("cuptiActivityEnable", ctypes.c_int(kind))
        # CUPTI writes into the buffer that it has until the process ends: an interpreter that ends before must neither
        # free it nor be called.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        atexit.register(self._stop)

    def _stop(self) -> None:
        """Before the interpreter ends: no more records, and those that there are now."""
        for kind in KINDS:
            self.cupti.cuptiActivityDisable(ctypes.c_int(kind))
        self.cupti.cuptiActivityFlushAll(ctypes.c_uint32(FLUSH_FORCED))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cupti, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with CUPTI status {status}")

    def _give_buffer(self, address: Any, size: Any, most_records: Any) -> None:
        buffer = ctypes.create_string_buffer(BUFFER_BYTES + 8)
        start = (ctypes.addressof(buffer) + 7) & ~7
        self.buffers[start] = buffer
        address[0], size[0], most_records[0] = start, BUFFER_BYTES, 0

    def _take_buffer(self, context: int, stream: int, address: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p(None)
        while (
            valid
            and self.cupti.cuptiActivityGetNextRecord(
                ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
            )
            == 0
        ):
            kind = ctypes.c_uint32.from_address(record.value or 0).value
            if kind in KINDS:
                place = (record.value or 0) + START_OFFSET
                self.spans.append(START_AND_END.unpack(ctypes.string_at(place, START_AND_END.size)))
        self.buffers.pop(address, None)

    def seconds(self, run: Callable[[], Any]) -> tuple[float, int]:
        """Return what the GPU was busy for while `run`, which waits for it, ran, and with how many kernels."""
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(0))
        self.spans.clear()
        run()
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(0))
        return sum(end - start for start, end in self.spans) * 1e-9, len(self.spans)


@functools.cache
def kernel_times() -> KernelTimes:
    """Return the process' collector."""
    return KernelTimes()
