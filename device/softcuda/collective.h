// collective.h - operations that wait for other streams' operations: what nccl.cpp of the software
// device is built on. See enqueue.h for what holds for every enqueued operation (copies of
// arguments, capture, replay, errors).
//
// Two forms. A *meeting* is for collectives in which every rank takes part; a *polled* operation is
// for everything else (send and receive between some ranks, aborts).
//
// If an operation waits for ranks whose host threads have not enqueued their part yet, the thread
// that synchronises sleeps until they have. When nothing at all has moved for SOFTCUDA_TIMEOUT_S
// seconds (default 60) the process aborts and prints what stands at the head of every stream.
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// --- meetings ------------------------------------------------------------------------------------
typedef struct SoftcudaMeeting SoftcudaMeeting;

// A place where `participants` ranks meet again and again (one per communicator). Destroy it when
// no stream or graph holds one of its operations any more.
SoftcudaMeeting* softcudaMeetingCreate(int participants, const char* name);
void softcudaMeetingDestroy(SoftcudaMeeting* meeting);

// Called once per meeting when the parts of all ranks are at the heads of their streams (or are
// runnable nodes of graphs at the heads of their streams). parts[rank] points to the bytes that
// this rank gave. It does the whole collective for every rank, checks that the parts fit each
// other, and returns 0, or a CUresult that becomes the sticky error of every participant's device.
// Called under the software device's lock: it must not call the driver or enqueue.
typedef int (*SoftcudaMeet)(const void* const* parts, int participants, void* user);

// Enqueues (or captures) this rank's part of the next meeting. Which meeting it joins is decided
// when it reaches the head of its stream, not here: a rank's parts meet in the order in which they
// run, so that replayed graphs work. `meet` and `user` of rank 0's part are the ones that are
// called.
int softcudaMeetingEnqueue(SoftcudaMeeting* meeting, int rank, void* stream, const char* name,
                           SoftcudaMeet meet, const void* part, size_t part_bytes, void* user);

// From now on every part of this meeting, waiting or enqueued later, ends at once without doing
// anything (an aborted communicator). Wakes the threads that wait.
void softcudaMeetingAbort(SoftcudaMeeting* meeting);

// --- polled operations ---------------------------------------------------------------------------
// Any positive value: a CUresult that becomes the device's sticky error.
enum { SOFTCUDA_DONE = 0, SOFTCUDA_WAIT = -1 };

// Called under the software device's lock whenever the operation is at the head of its stream and
// something in the process has moved since the last call. `argument` is the copied argument;
// `state` is `state_bytes` zeroed bytes of this execution (each replay of a graph has its own): a
// first call finds them zero. Returns SOFTCUDA_WAIT until it is done. A poll that completes other
// operations' work changes their state; they are polled again afterwards. Must not call the driver.
typedef int (*SoftcudaPoll)(const void* argument, void* state, void* user);
int softcudaEnqueuePoll(void* stream, const char* name, SoftcudaPoll poll, const void* argument,
                        size_t argument_bytes, size_t state_bytes, void* user);

// Something that polls look at has changed from outside (an abort flag, say): poll again, wake
// waiting threads.
void softcudaWake(void);

// The software device's lock, which polls and meets are called under: take it around the data that
// they share with other threads. Recursive. Never hold it across a call of the driver that
// synchronises.
void softcudaLock(void);
void softcudaUnlock(void);

#ifdef __cplusplus
}
#endif
