/* Kernels: known by name, counted, and held to the limits of a launch. */

#include "null_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 65536
#define MOST_SHARED 232448 /* bytes, of an H200 */

static Kernel *kernels[SLOTS];

Kernel *null_kernel(const void *key, const char *name) {
  Kernel **slot = &kernels[((size_t)key >> 4) % SLOTS];
  pthread_mutex_lock(&null_lock);
  Kernel *kernel = *slot;
  while (kernel && kernel->key != key) kernel = kernel->next;
  if (!kernel) {
    kernel = calloc(1, sizeof *kernel);
    kernel->name = strdup(name ? name : "?");
    kernel->key = key;
    kernel->next = *slot;
    *slot = kernel;
  }
  pthread_mutex_unlock(&null_lock);
  return kernel;
}

int null_launch(Kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned threads, size_t shared,
                void *handle) {
  UNLESS_BROKEN();
  if (!x || !y || !z || !threads || x > 2147483647u || y > 65535 || z > 65535 || threads > 1024 ||
      shared > MOST_SHARED) {
    char why[400];
    snprintf(why, sizeof why, "%.200s with a grid of %u, %u, %u, %u threads, %zu bytes shared",
             kernel->name, x, y, z, threads, shared);
    return null_fault(cudaErrorInvalidConfiguration, why);
  }
  Stream *stream = null_stream(handle);
  if (stream->graph) {
    stream->graph->launches++;
    __atomic_fetch_add(&kernel->captured, 1, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_add(&null_launches, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&kernel->runs, 1, __ATOMIC_RELAXED);
  }
  return cudaSuccess;
}

/* What a library queues by itself. */
int null_cuda_library(const char *name, void *stream) {
  return null_launch(null_kernel(name, name), 1, 1, 1, 1, 0, stream);
}

/* Lines of how often a kernel ran, how often it was captured, and its name. */
void null_cuda_kernels(char *out, size_t size) {
  size_t end = 0;
  for (int slot = 0; slot < SLOTS; slot++)
    for (Kernel *kernel = kernels[slot]; kernel; kernel = kernel->next)
      if ((kernel->runs || kernel->captured) && end + 500 < size)
        end += snprintf(out + end, size - end, "%ld\t%ld\t%.400s\n", kernel->runs,
                        kernel->captured, kernel->name);
  out[end] = 0;
}

/* What compiled code registers its kernels and launches them with. */

typedef struct Call {
  dim3 grid, block;
  size_t shared;
  void *stream;
} Call;

static _Thread_local Call calls[8];
static _Thread_local int depth;

void **__cudaRegisterFatBinary(void *binary) {
  static void *handle;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) {}

void __cudaUnregisterFatBinary(void **handle) {}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, uint3 *thread, uint3 *block, dim3 *blocks, dim3 *grid,
                            int *warp) {
  null_kernel(host, name);
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int is_extern,
                       size_t size, int is_constant, int is_global) {}

char __cudaInitModule(void **handle) { return 0; }

cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host) {
  *out = (cudaKernel_t)null_kernel(host, NULL);
  return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st *stream) {
  calls[depth++ & 7] = (Call){grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  Call call = calls[--depth & 7];
  *grid = call.grid;
  *block = call.block;
  *shared = call.shared;
  *(void **)stream = call.stream;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
  return null_launch((Kernel *)kernel, grid.x, grid.y, grid.z, block.x * block.y * block.z, shared,
                     stream);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
  cudaKernel_t kernel = (cudaKernel_t)null_kernel(host, NULL);
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                        size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(host, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *host, void **arguments) {
  return cudaLaunchKernel(host, how->gridDim, how->blockDim, arguments, how->dynamicSmemBytes,
                          how->stream);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host) {
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  out->binaryVersion = out->ptxVersion = 90;
  out->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *host, int threads,
                                                          size_t shared) {
  *count = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *host,
                                                                   int threads, size_t shared,
                                                                   unsigned flags) {
  *count = 2;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
  static char memory[1 << 16];
  *out = memory;
  return cudaSuccess;
}
