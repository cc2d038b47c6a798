// driver_library.cpp - enqueue.h and collective.h: work of the other libraries.
#include <cstdio>
#include <cstring>

#include "collective.h"
#include "driver_state.h"
#include "enqueue.h"
#include "meter.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// One meeting point: parts wait in order of arrival, one list per rank.
struct SoftcudaMeeting {
  struct Part {
    const void* bytes;
    SoftcudaMeet meet;
    void* user;
    char* done;        // in the operation's state
    int* result;
  };
  std::string name;
  std::vector<std::deque<Part>> waiting;
  bool aborted = false;
};

namespace softcuda {
namespace {

std::shared_ptr<std::vector<char>> copy_of(const void* bytes, size_t n) {
  const char* p = static_cast<const char*>(bytes);
  return std::make_shared<std::vector<char>>(p, p + n);
}

int submit_to(void* handle, Work work) {
  if (const int error = enter()) return error;
  int error = 0;
  Stream* s = find_stream(handle, error);
  return error ? error : submit(*s, std::move(work));
}

// What an execution of a part of a meeting remembers.
struct PartState {
  char arrived, done;
  int result;
};

int poll_meeting(SoftcudaMeeting* m, size_t rank, const void* bytes, SoftcudaMeet meet, void* user,
                 PartState* state) {
  if (m->aborted || state->done) return state->result;
  if (!state->arrived) {
    state->arrived = 1;
    m->waiting[rank].push_back({bytes, meet, user, &state->done, &state->result});
  }
  for (const auto& parts : m->waiting)
    if (parts.empty()) return SOFTCUDA_WAIT;
  // All are here: the oldest part of each rank.
  std::vector<const void*> all;
  for (const auto& parts : m->waiting) all.push_back(parts.front().bytes);
  const int result =
      m->waiting[0].front().meet(all.data(), int(all.size()), m->waiting[0].front().user);
  for (auto& parts : m->waiting) {
    *parts.front().done = 1;
    *parts.front().result = result;
    parts.pop_front();
  }
  return state->done ? state->result : SOFTCUDA_WAIT;
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

EXPORT int softcudaEnqueue(void* stream, const char* name, SoftcudaRun run, const void* argument,
                           size_t bytes, void* user) {
  HOLD;
  Work work;
  work.kind = kKernelNode;
  work.name = name;
  const auto copy = copy_of(argument, bytes);
  work.run = [=](Emulator&) { return run(copy->data(), user); };
  return submit_to(stream, std::move(work));
}
EXPORT int softcudaStreamDevice(void* stream) {
  Hold hold(driver().lock);
  int error = 0;
  const Stream* s = find_stream(stream, error);
  return s ? s->device->ordinal : -1;
}
EXPORT int softcudaIsMapped(const void* address, size_t bytes, int* device) {
  Hold hold(driver().lock);
  const Allocation* a = find_allocation(Address(address), bytes);
  if (a && device) *device = a->device ? a->device->ordinal : -1;
  return a != nullptr;
}
EXPORT void softcudaReads([[maybe_unused]] const void* address, size_t bytes) {
  if (Meter* meter = running_meter()) meter->note(bytes, false);
  IF_TSAN(__tsan_read_range(const_cast<void*>(address), bytes);)
}
EXPORT void softcudaWrites([[maybe_unused]] const void* address, size_t bytes) {
  if (Meter* meter = running_meter()) meter->note(bytes, true);
  IF_TSAN(__tsan_write_range(const_cast<void*>(address), bytes);)
}
EXPORT void softcudaMoves(unsigned long long read, unsigned long long written,
                          unsigned long long flops) {
  Meter* meter = running_meter();
  if (!meter) return;
  meter->note(read, false);
  meter->note(written, true);
  meter->note_flops(flops);
}

EXPORT SoftcudaMeeting* softcudaMeetingCreate(int participants, const char* name) {
  auto* m = new SoftcudaMeeting;
  m->name = name ? name : "meeting";
  m->waiting.resize(size_t(participants));
  return m;
}
EXPORT void softcudaMeetingDestroy(SoftcudaMeeting* meeting) {
  Hold hold(driver().lock);
  delete meeting;
}
EXPORT int softcudaMeetingEnqueue(SoftcudaMeeting* meeting, int rank, void* stream,
                                  const char* name, SoftcudaMeet meet, const void* part,
                                  size_t bytes, void* user) {
  HOLD;
  if (rank < 0 || size_t(rank) >= meeting->waiting.size()) return kInvalidValue;
  Work work;
  work.kind = kKernelNode;
  work.name = name;
  work.state_bytes = sizeof(PartState);
  const auto copy = copy_of(part, bytes);
  work.poll = [=](void* state) {
    return poll_meeting(meeting, size_t(rank), copy->data(), meet, user,
                        static_cast<PartState*>(state));
  };
  return submit_to(stream, std::move(work));
}
EXPORT void softcudaMeetingAbort(SoftcudaMeeting* meeting) {
  Hold hold(driver().lock);
  meeting->aborted = true;
  for (auto& parts : meeting->waiting) parts.clear();
  driver().moved++;
  driver().changed.notify_all();
}

EXPORT int softcudaEnqueuePoll(void* stream, const char* name, SoftcudaPoll poll,
                               const void* argument, size_t bytes, size_t state_bytes, void* user) {
  HOLD;
  Work work;
  work.kind = kKernelNode;
  work.name = name;
  work.state_bytes = state_bytes;
  const auto copy = copy_of(argument, bytes);
  work.poll = [=](void* state) { return poll(copy->data(), state, user); };
  return submit_to(stream, std::move(work));
}
EXPORT void softcudaWake(void) {
  Hold hold(driver().lock);
  driver().moved++;
  driver().changed.notify_all();
}
EXPORT void softcudaLock(void) { driver().lock.lock(); }
EXPORT void softcudaUnlock(void) { driver().lock.unlock(); }
