/* A CUDA that computes nothing.

It stands in for the CUDA runtime, the driver and cuBLAS below a torch that is built for CUDA, so
that everything above them runs where no GPU is: torch's allocators, its checks for waiting, graph
capture, Triton's launches. Memory, streams, events and captures obey CUDA's rules, and whoever
breaks one gets CUDA's error. Kernels are counted, and that is all: memory that they would write
stays as it was, and what comes back to the host is zero. */

#ifndef NULL_CUDA_H
#define NULL_CUDA_H

#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>

typedef struct Copy {
  void *to;
  const void *from;
  size_t size;
  struct Copy *next;
} Copy;

typedef struct Graph {
  long launches, copies;
  Copy *copied;
  unsigned long long id;
  int mode, is_invalid;
  pthread_t owner; /* who captures */
} Graph;

typedef struct Stream {
  Graph *graph; /* that is being captured of it */
  int is_origin;
  struct Stream *next;
} Stream;

typedef struct Kernel {
  char *name;
  const void *key;
  long runs, captured;
  struct Kernel *next;
} Kernel;

typedef enum { PAGEABLE, PINNED, DEVICE, OUTSIDE } Kind;

extern pthread_mutex_t null_lock;
extern int null_broken; /* the error of every call, once it is set */
extern size_t null_total, null_used;
extern long null_launches, null_graph_launches, null_copies, null_waits, null_reservations;

/* An error of this thread, and why it is one. */
int null_fault(int code, const char *why);

/* Begins every call that a GPU may refuse. */
#define UNLESS_BROKEN() \
  do { \
    if (null_broken) return null_fault(null_broken, NULL); \
  } while (0)

/* Not 0 where the call may not be made now, for somebody captures: the capture is invalid then. */
int null_unsafe(const char *call);

Stream *null_stream(void *handle);
Kind null_kind(const void *at, size_t size);
int null_copy(void *to, const void *from, size_t size, Stream *stream, int is_async);
void null_copy_again(const Copy *copy);
int null_launch(Kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned threads, size_t shared,
                void *stream);
Kernel *null_kernel(const void *key, const char *name);
int null_attribute(int *value, int attribute);

#endif
