/* Memory of the GPU and pinned memory: pages that are touched only where something is copied. */

#include "null_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES (2ul << 20) /* what the driver hands out at least */
#define LARGE (1ul << 20) /* beyond it nothing is written that is not zero: there may be too much */

typedef struct Range {
  char *at;
  size_t size;
  Kind kind;
  struct Range *next;
} Range;

static Range *ranges;

static void add(void *at, size_t size, Kind kind) {
  Range *range = malloc(sizeof *range);
  *range = (Range){at, size, kind, ranges};
  ranges = range;
}

/* The range that begins there, taken out of the list. */
static Range *take(const void *at) {
  Range **link = &ranges;
  while (*link && (*link)->at != at) link = &(*link)->next;
  Range *range = *link;
  if (range) *link = range->next;
  return range;
}

Kind null_kind(const void *at, size_t size) {
  Kind kind = PAGEABLE;
  pthread_mutex_lock(&null_lock);
  for (Range *range = ranges; range; range = range->next)
    if ((char *)at >= range->at && (char *)at < range->at + range->size) {
      kind = (char *)at + size > range->at + range->size ? OUTSIDE : range->kind;
      break;
    }
  pthread_mutex_unlock(&null_lock);
  return kind;
}

static cudaError_t reserve(void **out, size_t size, Kind kind) {
  size_t whole = (size + PAGES - 1) / PAGES * PAGES;
  pthread_mutex_lock(&null_lock);
  int fits = kind != DEVICE || null_used + whole <= null_total;
  if (fits) {
    *out = mmap(NULL, whole, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED) abort();
    add(*out, whole, kind);
    if (kind == DEVICE) {
      null_used += whole;
      null_reservations++;
    }
  }
  pthread_mutex_unlock(&null_lock);
  return fits ? cudaSuccess : null_fault(cudaErrorMemoryAllocation, NULL);
}

static cudaError_t release(void *at) {
  if (!at) return cudaSuccess;
  pthread_mutex_lock(&null_lock);
  Range *range = take(at);
  if (range) {
    munmap(range->at, range->size);
    if (range->kind == DEVICE) null_used -= range->size;
    free(range);
  }
  pthread_mutex_unlock(&null_lock);
  return range ? cudaSuccess : null_fault(cudaErrorInvalidValue, "freed what was not reserved");
}

cudaError_t cudaMalloc(void **out, size_t size) {
  UNLESS_BROKEN();
  if (null_unsafe("cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
  return reserve(out, size, DEVICE);
}

cudaError_t cudaFree(void *at) {
  UNLESS_BROKEN();
  if (at && null_unsafe("cudaFree")) return cudaErrorStreamCaptureUnsupported;
  return release(at);
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
  UNLESS_BROKEN();
  if (null_unsafe("cudaHostAlloc")) return cudaErrorStreamCaptureUnsupported;
  return reserve(out, size, PINNED);
}

cudaError_t cudaFreeHost(void *at) {
  UNLESS_BROKEN();
  return release(at);
}

cudaError_t cudaHostRegister(void *at, size_t size, unsigned flags) {
  UNLESS_BROKEN();
  pthread_mutex_lock(&null_lock);
  add(at, size, PINNED);
  pthread_mutex_unlock(&null_lock);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at) {
  UNLESS_BROKEN();
  pthread_mutex_lock(&null_lock);
  Range *range = take(at);
  pthread_mutex_unlock(&null_lock);
  int found = range != NULL;
  free(range);
  return found ? cudaSuccess : null_fault(cudaErrorHostMemoryNotRegistered, "unregistered twice");
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  UNLESS_BROKEN();
  *total = null_total;
  *free_bytes = null_used < null_total ? null_total - null_used : 0;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at) {
  Kind kind = null_kind(at, 0);
  memset(out, 0, sizeof *out);
  out->type = kind == DEVICE ? cudaMemoryTypeDevice
              : kind == PINNED ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  out->device = kind == PAGEABLE ? -1 : 0;
  out->devicePointer = kind == PAGEABLE ? NULL : (void *)at;
  out->hostPointer = kind == PINNED ? (void *)at : NULL;
  return cudaSuccess;
}

int null_copy(void *to, const void *from, size_t size, Stream *stream, int is_async) {
  UNLESS_BROKEN();
  if (!size) return cudaSuccess;
  Kind target = null_kind(to, size), source = null_kind(from, size);
  if (target == OUTSIDE || source == OUTSIDE)
    return null_fault(cudaErrorInvalidValue, "a copy reaches out of its memory");
  if (!is_async && null_unsafe("cudaMemcpy")) return cudaErrorStreamCaptureUnsupported;
  Copy copy = {to, from, size, NULL};
  if (stream->graph) {
    if (target == PAGEABLE || source == PAGEABLE) {
      stream->graph->is_invalid = 1;
      return null_fault(cudaErrorStreamCaptureUnsupported, "pageable memory in a capture");
    }
    copy.next = stream->graph->copied;
    stream->graph->copied = malloc(sizeof copy);
    *stream->graph->copied = copy;
    stream->graph->copies++;
    return cudaSuccess;
  }
  __atomic_fetch_add(&null_copies, 1, __ATOMIC_RELAXED);
  if (target == PAGEABLE || source == PAGEABLE) null_waits++;
  null_copy_again(&copy);
  return cudaSuccess;
}

void null_copy_again(const Copy *copy) {
  int is_there = null_kind(copy->to, 0) == DEVICE;
  if (null_kind(copy->from, 0) != DEVICE)
    memmove(copy->to, copy->from, copy->size);
  else if (!is_there)
    memset(copy->to, 0, copy->size); /* what was computed is zero */
  else if (copy->size <= LARGE)
    memmove(copy->to, copy->from, copy->size);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return null_copy(to, from, size, null_stream(stream), 1);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  return null_copy(to, from, size, null_stream(NULL), 0);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
  for (size_t line = 0; line < height; line++) {
    int code = null_copy((char *)to + line * to_pitch, (const char *)from + line * from_pitch,
                         width, null_stream(stream), 1);
    if (code) return code;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset,
                               enum cudaMemcpyKind kind) {
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t handle) {
  UNLESS_BROKEN();
  if (!size) return cudaSuccess;
  Kind kind = null_kind(at, size);
  if (kind == PAGEABLE || kind == OUTSIDE)
    return null_fault(cudaErrorInvalidValue, "set what is no memory of the GPU");
  Stream *stream = null_stream(handle);
  if (stream->graph)
    stream->graph->launches++;
  else if (size <= LARGE)
    memset(at, value, size);
  else if (!value) { /* whole pages are zero again where they are given back */
    char *first = (char *)(((size_t)at + 4095) & ~4095ul);
    char *last = (char *)(((size_t)at + size) & ~4095ul);
    madvise(first, last - first, MADV_DONTNEED);
    memset(at, 0, first - (char *)at);
    memset(last, 0, (char *)at + size - last);
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void *at, int value, size_t size) {
  return cudaMemsetAsync(at, value, size, NULL);
}
