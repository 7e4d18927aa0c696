/* Streams, events and graphs. Everything is done at once, so what waits is only counted; but a
   capture is one: who waits for it, or reserves memory beside it, makes it invalid. */

#include "null_cuda.h"

#include <stdlib.h>
#include <time.h>

typedef struct Event {
  double at; /* seconds */
  int is_recorded;
  Graph *graph; /* that was being captured where it was recorded */
} Event;

static Stream legacy, *streams = &legacy;
static unsigned long long captures;
static int live;
static _Thread_local int thread_mode = cudaStreamCaptureModeGlobal;

Stream *null_stream(void *handle) { return (size_t)handle <= 2 ? &legacy : (Stream *)handle; }

int null_unsafe(const char *call) {
  if (!live || thread_mode == cudaStreamCaptureModeRelaxed) return 0;
  int is_unsafe = 0;
  pthread_mutex_lock(&null_lock);
  for (Stream *stream = streams; stream; stream = stream->next) {
    Graph *graph = stream->graph;
    if (!graph || !stream->is_origin) continue;
    int is_own = pthread_equal(graph->owner, pthread_self());
    if (graph->mode == cudaStreamCaptureModeGlobal ||
        (is_own && graph->mode == cudaStreamCaptureModeThreadLocal))
      is_unsafe = graph->is_invalid = 1;
  }
  pthread_mutex_unlock(&null_lock);
  if (is_unsafe) null_fault(cudaErrorStreamCaptureUnsupported, call);
  return is_unsafe;
}

static cudaError_t broke(Graph *graph, int code, const char *why) {
  graph->is_invalid = 1;
  return null_fault(code, why);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  UNLESS_BROKEN();
  Stream *stream = calloc(1, sizeof *stream);
  pthread_mutex_lock(&null_lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&null_lock);
  *out = (cudaStream_t)stream;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  UNLESS_BROKEN();
  Graph *graph = null_stream(handle)->graph;
  return graph ? broke(graph, cudaErrorStreamCaptureUnsupported, "asked a captured stream")
               : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  UNLESS_BROKEN();
  Graph *graph = null_stream(handle)->graph;
  null_waits++;
  return graph ? broke(graph, cudaErrorStreamCaptureUnsupported, "waited for a captured stream")
               : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
  UNLESS_BROKEN();
  null_waits++;
  return null_unsafe("cudaDeviceSynchronize") ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned flags) {
  UNLESS_BROKEN();
  Stream *stream = null_stream(handle);
  Event *event = (Event *)awaited;
  if (event->graph && !stream->graph)
    stream->graph = event->graph; /* it joins the capture */
  else if (stream->graph && event->is_recorded && event->graph != stream->graph)
    return broke(stream->graph, cudaErrorStreamCaptureIsolation,
                 "a capture waits for what is outside of it");
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data,
                                  unsigned flags) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *data) {
  call(data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  UNLESS_BROKEN();
  *out = calloc(1, sizeof(Event));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  UNLESS_BROKEN();
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t recorded, cudaStream_t stream, unsigned flags) {
  UNLESS_BROKEN();
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *(Event *)recorded = (Event){now.tv_sec + now.tv_nsec * 1e-9, 1, null_stream(stream)->graph};
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

static cudaError_t asked(Event *event, const char *call) {
  if (event->graph) return broke(event->graph, cudaErrorCapturedEvent, "asked a captured event");
  return null_unsafe(call) ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  UNLESS_BROKEN();
  return asked((Event *)event, "cudaEventQuery");
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  UNLESS_BROKEN();
  null_waits++;
  return asked((Event *)event, "cudaEventSynchronize");
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  UNLESS_BROKEN();
  Event *first = (Event *)begin, *second = (Event *)end;
  if (!first->is_recorded || !second->is_recorded)
    return null_fault(cudaErrorInvalidResourceHandle, "an event that was not recorded");
  *ms = (second->at - first->at) * 1e3;
  return cudaSuccess;
}

/* Captures and graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  UNLESS_BROKEN();
  Stream *stream = null_stream(handle);
  if (stream == &legacy || stream->graph)
    return null_fault(cudaErrorStreamCaptureUnsupported, "a stream that cannot be captured");
  Graph *graph = calloc(1, sizeof *graph);
  pthread_mutex_lock(&null_lock);
  graph->id = ++captures;
  graph->mode = mode;
  graph->owner = pthread_self();
  stream->graph = graph;
  stream->is_origin = 1;
  live++;
  pthread_mutex_unlock(&null_lock);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
  Stream *ended = null_stream(handle);
  Graph *graph = ended->graph;
  *out = NULL;
  if (!graph || !ended->is_origin) return null_fault(cudaErrorIllegalState, "no capture to end");
  pthread_mutex_lock(&null_lock);
  for (Stream *stream = streams; stream; stream = stream->next)
    if (stream->graph == graph) {
      stream->graph = NULL;
      stream->is_origin = 0;
    }
  live--;
  pthread_mutex_unlock(&null_lock);
  if (graph->is_invalid) return null_fault(cudaErrorStreamCaptureInvalidated, "invalid before");
  *out = (cudaGraph_t)graph;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  Graph *graph = null_stream(handle)->graph;
  *status = !graph ? cudaStreamCaptureStatusNone
            : graph->is_invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  Stream *stream = null_stream(handle);
  if (stream->graph && id) *id = stream->graph->id;
  if (graph) *graph = (cudaGraph_t)stream->graph;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return cudaStreamIsCapturing(handle, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags) {
  UNLESS_BROKEN();
  *out = (cudaGraphExec_t)graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count) {
  Graph *graph = (Graph *)handle;
  *count = graph->launches + graph->copies;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  UNLESS_BROKEN();
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  UNLESS_BROKEN();
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  UNLESS_BROKEN();
  __atomic_fetch_add(&null_graph_launches, 1, __ATOMIC_RELAXED);
  for (Copy *copy = ((Graph *)handle)->copied; copy; copy = copy->next)
    if (null_kind(copy->to, copy->size) != OUTSIDE) null_copy_again(copy);
  return cudaSuccess;
}
