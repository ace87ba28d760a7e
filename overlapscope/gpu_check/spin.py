"""Kernels that run for a stated time by the device's own timer: what is computed and transferred is known exactly.

One thread reads `%globaltimer` until the time has passed, and stores when it began and ended. It is PTX, which the
driver itself compiles, so nothing but the driver is needed; a second entry point has a name as NCCL's kernels have.
"""

import ctypes
from typing import Any, Final

from overlapscope.gpu_check.measurements import NotRunError

COMPUTE: Final = "overlapscope_spin"
TRANSFER: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
NO_DEVICE: Final = "torch finds no CUDA device"
ILLEGAL_ADDRESS: Final = 0x10
_ENTRY: Final = """
.visible .entry NAME(.param .u64 duration, .param .u64 times)
{
  .reg .u64 %t<6>;
  .reg .pred %p<3>;
  ld.param.u64 %t1, [duration];
  ld.param.u64 %t4, [times];
  mov.u64 %t2, %globaltimer;
again:
  mov.u64 %t3, %globaltimer;
  sub.u64 %t5, %t3, %t2;
  setp.lt.u64 %p1, %t5, %t1;
  @%p1 bra again;
  setp.eq.u64 %p2, %t4, 0;
  @%p2 bra done;
  st.volatile.global.u64 [%t4], %t2;
  st.volatile.global.u64 [%t4+8], %t3;
  membar.sys;
done:
  ret;
}
"""


def ptx(capability: tuple[int, int]) -> str:
    """Return the program for devices of this compute capability; later ones take that of 7.5."""
    major, minor = min(capability, (7, 5))
    head = f".version 6.4\n.target sm_{major}{minor}\n.address_size 64\n"
    return head + "".join(_ENTRY.replace("NAME", name) for name in (COMPUTE, TRANSFER))


def device() -> Any:
    """Return torch, with its first device initialised. Raises NotRunError where there is none."""
    try:
        import torch
    except ImportError as error:
        raise NotRunError("torch is not installed") from error
    if not torch.cuda.is_available():
        raise NotRunError(NO_DEVICE)
    if torch.version.cuda is None:
        raise NotRunError("this torch is not built for CUDA: these kernels need an NVIDIA driver")
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    return torch


class Spin:
    """Launches kernels of a stated duration on the current stream of torch's current device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(self._context))
        program = ptx(torch.cuda.get_device_capability()).encode()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(program))
        self._kernels = {}
        for name in (COMPUTE, TRANSFER):
            kernel = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(name.encode()))
            self._kernels[name] = kernel

    def __call__(self, duration_ns: int, *, name: str = COMPUTE, times: int = 0) -> None:
        """Run for so long; begin and end are stored as two 64-bit nanoseconds at the address `times`, if not 0."""
        self._call("cuCtxSetCurrent", self._context)  # threads of autograd may have none yet
        duration, address = ctypes.c_uint64(int(duration_ns)), ctypes.c_uint64(times)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(duration), ctypes.addressof(address))
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._kernels[name], one, one, one, one, one, one, none, stream, values, None)

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._driver, name)(*args)
        if code:
            raise RuntimeError(f"{name} returned error {code} of the CUDA driver")
