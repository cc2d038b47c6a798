// enqueue.h - how the other libraries of the software device (cublaslt.cpp, nccl.cpp) put work on
// its streams.
//
// Link with libcuda.so.1 of the same folder. What is enqueued here behaves like a kernel launch: it
// runs later, in stream order, at a synchronisation point; on a capturing stream it becomes a node
// of the graph and runs once per replay. The stream is checked (and becomes part of a capture) at
// the call; `argument_bytes` bytes are copied at the call.
//
// All functions return a CUresult as int (0 = success); the errors of a capture that went wrong, of
// an invalid stream, and the device's sticky error come back from here just as from cuLaunchKernel.
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Does the work. Called on some host thread with the device to itself (no other operation of the
// same device runs), without the software device's lock. Must not call the driver. Returns 0, or a
// CUresult that becomes the device's sticky error.
typedef int (*SoftcudaRun)(const void* argument, void* user);

// Enqueues one operation. `name` (copied) is shown in messages and counted by SOFTCUDA_FAULT as a
// kernel's name is. `user` is passed through unchanged: it must outlive the stream's work and every
// graph that holds the operation.
int softcudaEnqueue(void* stream, const char* name, SoftcudaRun run, const void* argument,
                    size_t argument_bytes, void* user);

// The ordinal of the device that `stream` (or the current context, for the null stream) belongs to;
// -1 if there is none.
int softcudaStreamDevice(void* stream);

// Whether [address, address + bytes) lies in one live allocation of a device or in one pinned
// range; the device's ordinal comes back in *device (-1: pinned host memory). A run function that
// gets bad addresses should say which, on stderr, and return 700 (CUDA_ERROR_ILLEGAL_ADDRESS). May
// be called from a run function.
int softcudaIsMapped(const void* address, size_t bytes, int* device);

// Tell the sanitizers that [address, address + bytes) is read or written by the operation that runs
// now: does nothing in a plain build; under ThreadSanitizer it checks the operation against other
// streams' work. Instrumented code needs it only for what it does in routines that are not
// instrumented (memcpy of libc is seen without it).
void softcudaReads(const void* address, size_t bytes);
void softcudaWrites(const void* address, size_t bytes);

// Tells the meter (meter.h) what the operation that runs now moves and computes.
void softcudaMoves(unsigned long long read, unsigned long long written, unsigned long long flops);

#ifdef __cplusplus
}
#endif
