"""Stand-ins for NVIDIA's driver: a machine that seems to have GPUs, on which no program can run.

`nvidia-smi` lists GPUs, and the stand-in libraries let TensorFlow find one and then look for the
libraries of CUDA, which are missing. There is no GPU in any test.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

MODEL = "Stand-in GPU"
_SMI = """\
#!/bin/sh
case "$*" in
*index,uuid*) for i in {indexes}; do echo "$i, GPU-stand-in-$i"; done ;;
*) for i in {indexes}; do echo "{model}"; done ;;
esac
"""
_DRIVER = """
/* libcuda.so.1: one GPU, unless STAND_IN_CUINIT holds an error of cuInit (cuda.h). */
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags)
{ const char *code = getenv("STAND_IN_CUINIT"); return code ? atoi(code) : 0; }
int cuGetErrorName(int error, const char **name)
{ *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN"; return 0; }
int cuGetErrorString(int error, const char **text)
{ *text = error == 100 ? "no CUDA-capable device is detected" : "unknown error"; return 0; }
int cuDriverGetVersion(int *version) { *version = 12050; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device)
{ strncpy(name, "Stand-in GPU", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{ *value = attribute == 75 ? 8 : attribute == 76 ? 0 : 1; return 0; } /* compute capability 8.0 */
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1ul << 33; return 0; }
int cuDeviceGetPCIBusId(char *id, int length, int device)
{ strncpy(id, "0000:00:1e.0", length); return 0; }
"""
_NVML = """
/* libnvidia-ml.so.1, which TensorFlow 2.21 needs before it looks for the other libraries. */
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "stand-in"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **gpu) { *gpu = (void *)1; return 0; }
int nvmlDeviceGetNvLinkCapability(void) { return 3; }
int nvmlDeviceGetFieldValues(void) { return 3; }
"""


def add_nvidia_smi(folder: Path, gpus: int = 2) -> Path:
    """Write an `nvidia-smi` that lists `gpus` GPUs; return its folder, for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(_SMI.format(indexes=" ".join(map(str, range(gpus))), model=MODEL))
    program.chmod(0o755)
    return folder


def build_driver(folder: Path) -> Path:
    """Compile the stand-in libraries; return their folder, for LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in (("libcuda.so.1", _DRIVER), ("libnvidia-ml.so.1", _NVML)):
        source = folder / f"{name}.c"
        source.write_text(code)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / name, source], check=True)
    return folder
