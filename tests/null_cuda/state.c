/* Errors, and what tests ask and change from outside. */

#include "null_cuda.h"

#include <stdio.h>

pthread_mutex_t null_lock = PTHREAD_MUTEX_INITIALIZER;
int null_broken;
size_t null_total = 139ul << 30, null_used;
long null_launches, null_graph_launches, null_copies, null_waits, null_reservations;

static _Thread_local int last;

int null_fault(int code, const char *why) {
  if (why) fprintf(stderr, "null cuda: error %d: %s\n", code, why);
  return last = code;
}

cudaError_t cudaGetLastError(void) {
  int code = null_broken ? null_broken : last;
  last = 0;
  return code;
}

cudaError_t cudaPeekAtLastError(void) { return null_broken ? null_broken : last; }

const char *cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return "an error of null cuda";
  }
}

const char *cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

/* From here on every call fails with this error, as after a kernel's illegal access; 0: no more. */
void null_cuda_break(int code) { null_broken = code; }

/* How much memory the GPU has. */
void null_cuda_memory(size_t bytes) { null_total = bytes; }

/* Since the beginning: launches, graph launches, copies, waits, reservations; bytes reserved. */
void null_cuda_counts(long counts[6]) {
  counts[0] = null_launches;
  counts[1] = null_graph_launches;
  counts[2] = null_copies;
  counts[3] = null_waits;
  counts[4] = null_reservations;
  counts[5] = (long)null_used;
}
