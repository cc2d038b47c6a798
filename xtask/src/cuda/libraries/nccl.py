"""What the real NCCL answers without a device. Exits with 1 at the first wrong answer."""

import ctypes
import sys
from ctypes import byref, c_int

nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetErrorString.restype = ctypes.c_char_p


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected}, found {found}")


version = c_int()
expect("ncclGetVersion", nccl.ncclGetVersion(byref(version)), 0)
print(f"NCCL {version.value}")
# What needs a device is refused, and does not crash; with a driver it may be taken.
unique = ctypes.create_string_buffer(128)
code = nccl.ncclGetUniqueId(unique)
print(f"ncclGetUniqueId: {nccl.ncclGetErrorString(code).decode()}")
expect("ncclGetVersion of nothing", nccl.ncclGetVersion(None), 4)
if not nccl.ncclGetErrorString(4).startswith(b"invalid argument"):
    sys.exit("NCCL has another name for argument errors")
