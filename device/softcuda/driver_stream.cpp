// driver_stream.cpp - streams, events, host functions, and the rules of capture.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver_state.h"

namespace softcuda {

uint64_t this_thread() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t id = next++;
  return id;
}

Stream* null_stream(Device& device) { return &driver().null_streams[size_t(device.ordinal)]; }

// The stream behind a handle: of the program, or the null stream of the current context.
Stream* find_stream(void* handle, int& error) {
  Driver& d = driver();
  if (!handle || handle == reinterpret_cast<void*>(1) || handle == reinterpret_cast<void*>(2)) {
    if (!current_context) return error = kInvalidContext, nullptr;
    // The null stream would wait for blocking streams, of which one captures.
    for (Capture* c : d.captures)
      for (Stream* s : c->members)
        if (s->blocking && s->device == current_context->device && c->mode != 2)
          return error = invalidate(*c, kCaptureImplicit), nullptr;
    return null_stream(*current_context->device);
  }
  Stream* s = static_cast<Stream*>(handle);
  if (!d.streams.count(s) || s->destroyed || s->null) return error = kInvalidHandle, nullptr;
  if (s->device->sticky) return error = s->device->sticky, nullptr;
  return s;
}

int invalidate(Capture& capture, int error) {
  capture.invalid = true;
  return error;
}

// Calls that may wait for the device or change what a capture stands on: forbidden while this
// thread captures, or any thread in global mode. 0: global, 1: thread-local, 2: relaxed.
// cuThreadExchangeStreamCaptureMode: what this thread asks to be held to.
thread_local int thread_mode = 0;
int unsafe_in_capture() {
  if (thread_mode == 2) return kOk;
  for (Capture* c : driver().captures) {
    const bool mine = c->thread == this_thread();
    if ((c->mode == 0 && (thread_mode == 0 || mine)) || (c->mode == 1 && mine))
      return invalidate(*c, kCaptureUnsupported);
  }
  return kOk;
}

#ifdef SOFTCUDA_TSAN
Lane::~Lane() {
  if (tsan) __tsan_destroy_fiber(tsan);
}
static std::shared_ptr<Lane> new_lane(uint64_t seed) {
  auto lane = std::make_shared<Lane>();
  lane->emulator = std::make_unique<Emulator>(seed);
  lane->tsan = __tsan_create_fiber(0);
  return lane;
}
#else
Lane::~Lane() = default;
#endif

int submit(Stream& s, Work work) {
  Driver& d = driver();
  IF_TSAN(if (!s.lane) s.lane = new_lane(d.settings.seed); work.lane = s.lane;)
  if (Capture* c = s.capture) {
    if (c->invalid) return kCaptureInvalidated;
    c->nodes.push_back({std::make_shared<const Work>(std::move(work)), s.tail});
    IF_TSAN(__tsan_release(&c->nodes.back().work->order);)
    s.tail = {c->nodes.size() - 1};
    return kOk;
  }
  Item item;
  item.state.resize(work.state_bytes);
  item.work = std::make_shared<const Work>(std::move(work));
  item.sequence = ++d.sequence;
  IF_TSAN(__tsan_release(&item.work->order);)
  s.queue.push_back(std::move(item));
  d.moved++;
  d.changed.notify_all();
  return kOk;
}

namespace {

int new_stream(Stream** out, unsigned flags, int priority) {
  Driver& d = driver();
  if (flags & ~1u) return kInvalidValue;
  Stream* s = new Stream;
  s->device = current_context->device;
  s->blocking = !(flags & 1);
  s->flags = flags;
  s->priority = std::min(0, std::max(-5, priority));
  s->weight = draw(d);
  d.streams.insert(s);
  *out = s;
  return kOk;
}

Event* find_event(Event* e) { return driver().events.count(e) ? e : nullptr; }

bool reaches(const Capture& c, const std::vector<size_t>& from, size_t target) {
  std::vector<size_t> open(from);
  std::vector<bool> seen(c.nodes.size());
  while (!open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    if (at == target) return true;
    if (seen[at]) continue;
    seen[at] = true;
    open.insert(open.end(), c.nodes[at].dependencies.begin(), c.nodes[at].dependencies.end());
  }
  return false;
}

// Every stream that joined the capture must have been joined back to where it began.
bool unjoined(const Capture& c) {
  for (Stream* s : c.members)
    if (s != c.origin)
      for (size_t node : s->tail)
        if (!reaches(c, c.origin->tail, node)) return true;
  // A forked stream without any work of its own must come back, too: its tail is then the fork's,
  // which the origin has.
  return false;
}

void end_membership(Capture& c) {
  for (Stream* s : c.members) {
    s->capture = nullptr;
    s->tail.clear();
  }
  for (Event* e : c.events) {
    e->capture = nullptr;  // an event recorded in a capture is as if never recorded afterwards
    e->dependencies.clear();
    e->last = nullptr;
  }
  driver().captures.erase(&c);
}

void add_unique(std::vector<size_t>& to, const std::vector<size_t>& from) {
  for (size_t x : from)
    if (std::find(to.begin(), to.end(), x) == to.end()) to.push_back(x);
}

int wait_in_capture(Stream& s, Event& e, unsigned flags) {
  Capture* c = e.capture;
  if (flags & 1) {  // external: a wait node for work outside
    if (!s.capture) return kInvalidValue;
    Work work;
    work.kind = kWaitNode;
    work.name = "event wait";
    work.wait_event = &e;
    work.keep = driver().events[&e];
    return submit(s, std::move(work));
  }
  if (!c) {
    if (!e.last) return kOk;
    return invalidate(*s.capture, kCaptureIsolation);
  }
  if (s.capture && s.capture != c) {
    invalidate(*s.capture, 0);
    return invalidate(*c, kCaptureMerge);
  }
  if (!s.capture) {
    s.capture = c;
    s.tail.clear();
    c->members.insert(&s);
  }
  if (c->invalid) return kCaptureInvalidated;
  add_unique(s.tail, e.dependencies);
  return kOk;
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

API cuStreamCreate(Stream** out, unsigned flags) {
  ENTER;
  return new_stream(out, flags, 0);
}
API cuStreamCreateWithPriority(Stream** out, unsigned flags, int priority) {
  ENTER;
  return new_stream(out, flags, priority);
}
API cuStreamDestroy_v2(Stream* s) {
  HOLD;
  if (!d.streams.count(s) || s->null || s->destroyed) return kInvalidHandle;
  if (s->capture) {
    invalidate(*s->capture, 0);
    if (s->capture->origin == s) {
      Capture* c = s->capture;
      end_membership(*c);
      delete c;
    } else {
      s->capture->members.erase(s);
    }
  }
  s->destroyed = true;  // its work still runs
  if (s->queue.empty()) {
    d.streams.erase(s);
    delete s;
  }
  return kOk;
}
API cuStreamGetFlags(void* handle, unsigned* flags) {
  ENTER;
  int error = 0;
  if (Stream* s = find_stream(handle, error)) *flags = s->flags;
  return error;
}
API cuStreamGetPriority(void* handle, int* priority) {
  ENTER;
  int error = 0;
  if (Stream* s = find_stream(handle, error)) *priority = s->priority;
  return error;
}
API cuStreamGetCtx(void* handle, Context** context) {
  ENTER;
  int error = 0;
  if (Stream* s = find_stream(handle, error)) *context = &d.contexts[size_t(s->device->ordinal)];
  return error;
}
API cuStreamGetId(void* handle, unsigned long long* id) {
  ENTER;
  int error = 0;
  if (Stream* s = find_stream(handle, error)) *id = reinterpret_cast<unsigned long long>(s);
  return error;
}
API cuStreamSynchronize(void* handle) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (s->capture) return invalidate(*s->capture, kCaptureUnsupported);
  drain(hold, *s);
  IF_TSAN(__tsan_acquire(&s->order);)
  return s->device->sticky;
}
API cuStreamQuery(void* handle) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (s->capture) return invalidate(*s->capture, kCaptureUnsupported);
  get_on(hold, [&] { return s->queue.empty(); });
  return s->device->sticky ? s->device->sticky : s->queue.empty() ? kOk : kNotReady;
}
API cuLaunchHostFunc(void* handle, void (*function)(void*), void* user) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  Work work;
  work.kind = kHostNode;
  work.name = "host function";
  work.run = [=](Emulator&) {
    in_host_function = true;  // it must not call the driver
    function(user);
    in_host_function = false;
    return 0;
  };
  return submit(*s, std::move(work));
}
API cuStreamWriteValue32_v2(void* handle, Address to, unsigned value, unsigned) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (!find_allocation(to, 4)) return kInvalidValue;
  Work work;
  work.name = "write value";
  work.poll = [=](void*) {  // at once; a poll, since polls see what came before each other
    __atomic_store_n(reinterpret_cast<unsigned*>(to), value, __ATOMIC_RELEASE);
    return 0;
  };
  return submit(*s, std::move(work));
}
API cuStreamWaitValue32_v2(void* handle, Address from, unsigned value, unsigned flags) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (!find_allocation(from, 4)) return kInvalidValue;
  Work work;
  work.name = "wait value";
  work.poll = [=](void*) {
    const unsigned now = __atomic_load_n(reinterpret_cast<unsigned*>(from), __ATOMIC_ACQUIRE);
    const bool met = (flags & 7) == 0   ? int(now - value) >= 0
                     : (flags & 7) == 1 ? now == value
                     : (flags & 7) == 2 ? (now & value) != 0
                                        : ~(now | value) != 0;
    return met ? 0 : -1;
  };
  return submit(*s, std::move(work));
}

API cuEventCreate(Event** out, unsigned flags) {
  ENTER;
  auto e = std::make_shared<Event>();
  e->device = current_context->device;
  e->timing = !(flags & 2);
  d.events[e.get()] = e;
  *out = e.get();
  return kOk;
}
API cuEventDestroy_v2(Event* e) {
  HOLD;
  if (!find_event(e)) return kInvalidHandle;
  if (e->capture) e->capture->events.erase(e);
  d.events.erase(e);
  return kOk;
}
API cuEventRecordWithFlags(Event* e, void* handle, unsigned flags) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (!find_event(e) || e->device != s->device) return kInvalidHandle;
  if (s->capture && !(flags & 1)) {
    if (s->capture->invalid) return kCaptureInvalidated;
    if (e->capture) e->capture->events.erase(e);
    e->capture = s->capture;
    e->dependencies = s->tail;
    s->capture->events.insert(e);
    return kOk;
  }
  Work work;
  work.kind = kRecordNode;
  work.name = "event record";
  if (s->capture) {  // external: a node that records at each replay
    work.record_event = e;
    work.keep = d.events[e];
  } else {
    if (e->capture) e->capture->events.erase(e);
    e->capture = nullptr;
    e->last = work.record = std::make_shared<Record>();
  }
  return submit(*s, std::move(work));
}
API cuEventRecord(Event* e, void* handle) {
  COUNT;
  return cuEventRecordWithFlags(e, handle, 0);
}
API cuEventQuery(Event* e) {
  ENTER;
  if (!find_event(e)) return kInvalidHandle;
  if (e->capture) return invalidate(*e->capture, kCapturedEvent);
  if (const int error = unsafe_in_capture()) return error;
  if (e->device->sticky) return e->device->sticky;
  if (!e->last || e->last->done) return kOk;
  const std::shared_ptr<Record> record = e->last;
  get_on(hold, [&] { return record->done; });
  IF_TSAN(if (record->done) __tsan_acquire(&record->order);)
  return record->done ? kOk : kNotReady;
}
API cuEventSynchronize(Event* e) {
  ENTER;
  if (!find_event(e)) return kInvalidHandle;
  if (e->capture) return invalidate(*e->capture, kCapturedEvent);
  if (const int error = unsafe_in_capture()) return error;
  Device& device = *e->device;
  const std::shared_ptr<Record> record = e->last;
  if (record) wait_until(hold, [&] { return record->done; });
  IF_TSAN(if (record) __tsan_acquire(&record->order);)
  return device.sticky;
}
API cuEventElapsedTime_v2(float* ms, Event* from, Event* to) {
  ENTER;
  if (!find_event(from) || !find_event(to) || !from->timing || !to->timing || !from->last ||
      !to->last)
    return kInvalidHandle;
  if (!from->last->done || !to->last->done) return kNotReady;
  *ms = float(to->last->at_ms - from->last->at_ms);
  return kOk;
}
API cuEventElapsedTime(float* ms, Event* from, Event* to) {
  COUNT;
  return cuEventElapsedTime_v2(ms, from, to);
}
API cuStreamWaitEvent(void* handle, Event* e, unsigned flags) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (!find_event(e) || flags & ~1u) return kInvalidHandle;
  if (s->capture || e->capture) return wait_in_capture(*s, *e, flags);
  if (!e->last) return kOk;
  Work work;
  work.kind = kWaitNode;
  work.name = "event wait";
  work.wait = e->last;
  return submit(*s, std::move(work));
}

// --- capture -------------------------------------------------------------------------------------
API cuStreamBeginCapture_v2(void* handle, int mode) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (mode < 0 || mode > 2) return kInvalidValue;
  if (s->null) return kCaptureUnsupported;  // the legacy stream cannot be captured
  if (s->capture) return invalidate(*s->capture, kInvalidValue);
  Capture* c = new Capture;
  c->origin = s;
  c->mode = mode;
  c->thread = this_thread();
  c->id = d.next_capture++;
  c->members.insert(s);
  s->capture = c;
  s->tail.clear();
  d.captures.insert(c);
  return kOk;
}
API cuStreamEndCapture(void* handle, Graph** out) {
  ENTER;
  *out = nullptr;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  Capture* c = s->capture;
  if (!c) return kInvalidValue;
  if (c->mode != 2 && c->thread != this_thread()) return kCaptureWrongThread;
  if (c->origin != s) return invalidate(*c, kCaptureUnmatched);
  int result = c->invalid ? kCaptureInvalidated : unjoined(*c) ? kCaptureUnjoined : kOk;
  end_membership(*c);
  if (!result) {
    *out = new Graph{std::move(c->nodes), s->device};
    d.graphs.insert(*out);
  }
  delete c;
  return result;
}
API cuStreamIsCapturing(void* handle, int* status) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  *status = s->capture ? (s->capture->invalid ? 2 : 1) : 0;
  return kOk;
}
namespace {
int capture_info(void* handle, int* status, uint64_t* id) {
  HOLD;
  if (const int e = enter()) return e;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  *status = s->capture ? (s->capture->invalid ? 2 : 1) : 0;
  if (id && s->capture) *id = s->capture->id;
  return kOk;
}
}  // namespace
// The graph and the dependencies under construction are not shown.
API cuStreamGetCaptureInfo_v2(void* handle, int* status, uint64_t* id, void** graph,
                              void** dependencies, size_t* count) {
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (count) *count = 0;
  return capture_info(handle, status, id);
}
API cuStreamGetCaptureInfo_v3(void* handle, int* status, uint64_t* id, void** graph,
                              void** dependencies, void** edges, size_t* count) {
  if (edges) *edges = nullptr;
  return cuStreamGetCaptureInfo_v2(handle, status, id, graph, dependencies, count);
}
API cuThreadExchangeStreamCaptureMode(int* mode) {
  COUNT;
  if (*mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, thread_mode);
  return kOk;
}
