/* The driver, as far as Triton asks it. */

#include "null_cuda.h"

#include <stdlib.h>

static int context;

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }

CUresult cuDeviceGet(CUdevice *out, int number) {
  *out = number;
  return number ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) { return cudaGetDeviceCount(count); }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return null_attribute(value, attribute);
}

CUresult cuCtxGetCurrent(CUcontext *out) {
  *out = (CUcontext)&context;
  return null_broken;
}

CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) { return cuCtxGetCurrent(out); }

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
  *flags = 0;
  *is_active = 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  UNLESS_BROKEN();
  *out = (CUmodule)image;
  return null_unsafe("a module was loaded") ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  *out = (CUfunction)null_kernel(malloc(1), name); /* each module's is another one */
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult code, const char **out) {
  *out = cudaGetErrorString((cudaError_t)code);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction function, void **arguments,
                          void **extra) {
  return null_launch((Kernel *)function, how->gridDimX, how->gridDimY, how->gridDimZ,
                     how->blockDimX * how->blockDimY * how->blockDimZ, how->sharedMemBytes,
                     how->hStream);
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned width,
                        unsigned height, unsigned depth, unsigned shared, CUstream stream,
                        void **arguments, void **extra) {
  return null_launch((Kernel *)function, x, y, z, width * height * depth, shared, stream);
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr at) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
  Kind kind = null_kind((void *)at, 0);
  if (kind == PAGEABLE) return CUDA_ERROR_INVALID_VALUE;
  *(CUdeviceptr *)value = at;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *how) {
  *count = 1;
  return CUDA_SUCCESS;
}
