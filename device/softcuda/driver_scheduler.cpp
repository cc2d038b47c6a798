// driver_scheduler.cpp - the one place where work of streams is run.
//
// A thread that synchronises runs operations, of any stream of any device, until what it waits for
// has happened. Which stream comes next is drawn from the seed: streams have random weights that
// change now and then, so that one may run far ahead of another, as on a device. Seed 0 runs in the
// order of enqueueing, the schedule that hides most.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "driver_state.h"
#include "meter.h"

namespace softcuda {
namespace {

struct Candidate {
  Stream* stream;
  size_t node;   // of the graph at the head; kWhole: the head itself
};
constexpr size_t kWhole = ~size_t(0);

// `wait`: what it waits for, or null.
bool can_start(const Device& device, const Work& work, const Record* wait) {
  if (wait && !wait->done && !device.sticky) return false;
  if (work.run && device.busy && device.asleep != &work) return false;
  if (work.graph && work.graph->running) return false;
  return true;
}

// The null stream waits for everything before it in blocking streams of its device, and those wait
// for it.
bool held_by_null_stream(Driver& d, const Stream& stream, uint64_t sequence) {
  if (!stream.null && !stream.blocking) return false;
  for (const Stream* other : d.streams) {
    if (other == &stream || other->device != stream.device || other->queue.empty()) continue;
    if ((stream.null ? other->blocking : other->null) && other->queue.front().sequence < sequence)
      return true;
  }
  return false;
}

void candidates(Driver& d, std::vector<Candidate>& out) {
  for (Stream* s : d.streams) {
    if (s->queue.empty()) continue;
    Item& head = s->queue.front();
    if (head.graph) {
      for (size_t node : head.graph->ready) {
        const Work& work = *head.graph->exec->nodes[node].work;
        const Record* wait = work.wait_event ? head.graph->records[node].get() : nullptr;
        if (can_start(*s->device, work, wait)) out.push_back({s, node});
      }
    } else if (!head.running && can_start(*s->device, *head.work, head.work->wait.get()) &&
               !held_by_null_stream(d, *s, head.sequence)) {
      out.push_back({s, kWhole});
    }
  }
}

// Candidates in the order in which to try them.
void order(Driver& d, std::vector<Candidate>& all) {
  if (all.empty()) return;
  const auto first = [](const Candidate& c) { return c.stream->queue.front().sequence; };
  if (!d.settings.seed) {
    std::sort(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) {
      return first(a) != first(b) ? first(a) < first(b) : a.node < b.node;
    });
    return;
  }
  for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[draw(d) % i]);
  if (draw(d) % 8 == 0) all[0].stream->weight = draw(d);
  if (draw(d) % 4 == 0) return;
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.stream->weight > b.stream->weight;
  });
}

void moved(Driver& d) {
  d.moved++;
  d.changed.notify_all();
}

void retire(Driver& d, Stream& s) {
  s.queue.pop_front();
  moved(d);
}

void begin_graph(Stream& s, Item& head) {
  auto run = std::make_unique<GraphRun>();
  run->exec = head.work->graph;
  const std::vector<Node>& nodes = run->exec->nodes;
  run->left = nodes.size();
  run->missing.resize(nodes.size());
  run->dependents.resize(nodes.size());
  run->started.resize(nodes.size());
  run->state.resize(nodes.size());
  run->order.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); i++) {
    run->missing[i] = uint32_t(nodes[i].dependencies.size());
    for (size_t before : nodes[i].dependencies) run->dependents[before].push_back(i);
    if (!run->missing[i]) run->ready.push_back(i);
    run->state[i].resize(nodes[i].work->state_bytes);
  }
  run->records = std::move(head.records);
  run->exec->running = true;
  head.graph = std::move(run);
  (void)s;
}

void end_graph(Driver& d, Stream& s) {
  GraphRun& run = *s.queue.front().graph;
#ifdef SOFTCUDA_TSAN
  void* host = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(s.queue.front().work->lane->tsan, kTsanNoSync);
  __tsan_acquire(&s.order);
  for (char& token : run.order) __tsan_acquire(&token);
  __tsan_release(&s.order);
  __tsan_switch_to_fiber(host, kTsanNoSync);
#endif
  run.exec->running = false;
  retire(d, s);
}

void finish_graph_node(Driver& d, Stream& s, size_t node) {
  GraphRun& run = *s.queue.front().graph;
  for (size_t after : run.dependents[node])
    if (--run.missing[after] == 0) run.ready.push_back(after);
  moved(d);
  if (--run.left == 0) end_graph(d, s);
}

void mark(const std::shared_ptr<Record>& record) {
  record->done = true;
  record->at_ms = now_ms();
}

// ThreadSanitizer: the thread of the work's stream, knowing what comes before the work and nothing
// else, for as long as this lives; what it has done is then known to what comes after.
#ifdef SOFTCUDA_TSAN
// The lane runs on the host thread's stack, where what the one has left is none of the other's
// business.
[[gnu::noinline]] void forget_stack() {
  char here = 0;
  // Above: the lane's first frames begin where this one's caller is.
  constexpr unsigned long kBelow = 60 << 10, kAbove = 1 << 10;
  tsan_forget(&here - kBelow, kBelow + kAbove);
}
char polls;  // the token of all polls: they do each other's work
class AsLane {
 public:
  AsLane(Stream& s, size_t node, const Work& work)
      : stream_(s), node_(node), work_(work), host_(__tsan_get_current_fiber()) {
    __tsan_switch_to_fiber(work.lane->tsan, kTsanNoSync);
    forget_stack();
    __tsan_acquire(&s.order);
    __tsan_acquire(&work.order);
    if (work.wait) __tsan_acquire(&work.wait->order);
    if (work.poll) {
      __tsan_release(&polls);
      __tsan_acquire(&polls);
    }
    if (node == kWhole) return;
    const Item& head = s.queue.front();
    __tsan_acquire(const_cast<char*>(&head.work->order));
    if (work.wait_event && head.graph->records[node])
      __tsan_acquire(&head.graph->records[node]->order);
    for (size_t before : head.graph->exec->nodes[node].dependencies)
      __tsan_acquire(&head.graph->order[before]);
  }
  ~AsLane() {
    if (work_.poll) __tsan_release(&polls);
    if (work_.record) __tsan_release(&work_.record->order);
    if (work_.record_event)
      __tsan_release(&stream_.queue.front().graph->records[node_]->order);
    forget_stack();
    __tsan_release(&stream_.device->order);
    __tsan_release(node_ == kWhole ? &stream_.order : &stream_.queue.front().graph->order[node_]);
    __tsan_switch_to_fiber(host_, kTsanNoSync);
  }
  AsLane(const AsLane&) = delete;
  AsLane& operator=(const AsLane&) = delete;

 private:
  Stream& stream_;
  size_t node_;
  const Work& work_;
  void* host_;
};
#else
struct AsLane {
  AsLane(const Stream&, size_t, const Work&) {}
};
#endif

// Runs the work itself; the lock is let go while the device computes. False: it has to wait (a
// poll).
bool execute(Driver& d, Hold& hold, const Candidate& c, const Work& work, void* state) {
  Device& device = *c.stream->device;
  const bool woken = device.asleep == &work;
  if (device.sticky) {
    // Nothing of a broken device runs; what waits for it continues and finds the error.
    if (woken) {
      (work.lane ? *work.lane->emulator : *device.emulator).drop();
      device.asleep = nullptr;
      device.busy = false;
    }
  } else if (work.poll) {
    const AsLane lane(*c.stream, c.node, work);
    const int result = work.poll(state);
    if (result == -1) return false;
    if (result) fail(device, result, work.name + " reports an error");
  } else if (work.run && !woken && work.kind == kKernelNode && fault_due(work.name)) {
    fail(device, kIllegalAddress, "SOFTCUDA_FAULT: " + work.name);
  } else if (work.run) {
    device.busy = true;
    device.asleep = nullptr;
    d.running++;
    hold.unlock();
    int result = 0;
    {
      const AsLane lane(*c.stream, c.node, work);
      const std::unique_ptr<Meter> meter = woken ? nullptr : Meter::begin(work.name);
      result = work.run(work.lane ? *work.lane->emulator : *device.emulator);
    }
    hold.lock();
    d.running--;
    if (result == Emulator::kAsleep) {
      device.asleep = &work;
      return false;
    }
    device.busy = false;
    if (result) fail(device, result, work.name + " failed");
  } else {
    const AsLane lane(*c.stream, c.node, work);  // events: only order
  }
  if (work.record) mark(work.record);
  if (work.record_event) mark(c.stream->queue.front().graph->records[c.node]);
  return true;
}

// Runs a candidate; false: it has to wait.
bool run_candidate(Driver& d, Hold& hold, const Candidate& c) {
  Stream& s = *c.stream;
  Item& head = s.queue.front();
  if (c.node == kWhole && head.work->graph) {
    if (s.device->sticky || head.work->graph->nodes.empty()) {
      const std::vector<Node>& nodes = head.work->graph->nodes;
      for (size_t i = 0; i < head.records.size(); i++)
        if (nodes[i].work->record_event) mark(head.records[i]);
      retire(d, s);
    } else {
      begin_graph(s, head);
      moved(d);
    }
    return true;
  }
  if (c.node == kWhole) {
    const WorkRef work = head.work;
    head.running = true;
    const bool done = execute(d, hold, c, *work, head.state.data());
    head.running = false;
    if (!done) return false;
    retire(d, s);
    return true;
  }
  GraphRun& run = *head.graph;
  const WorkRef work = run.exec->nodes[c.node].work;
  run.ready.erase(std::find(run.ready.begin(), run.ready.end(), c.node));
  if (!execute(d, hold, c, *work, run.state[c.node].data())) {
    run.ready.push_back(c.node);
    return false;
  }
  finish_graph_node(d, s, c.node);
  return true;
}

// Streams that were destroyed with work in them and have none left.
void sweep(Driver& d) {
  std::erase_if(d.streams, [](Stream* s) {
    const bool gone = s->destroyed && s->queue.empty();
    if (gone) delete s;
    return gone;
  });
}

[[noreturn]] void report_standstill(Driver& d) {
  fprintf(
      stderr,
      "softcuda: nothing has moved for %g s (SOFTCUDA_TIMEOUT_S); at the heads of the streams:\n",
      d.settings.timeout_s);
  for (Stream* s : d.streams) {
    if (s->queue.empty()) continue;
    const Item& head = s->queue.front();
    fprintf(stderr, "  device %d, %sstream %p, %zu operations: ", s->device->ordinal,
            s->null ? "null " : "", static_cast<void*>(s), s->queue.size());
    if (!head.graph)
      fprintf(stderr, "%s%s\n", head.work->name.c_str(),
              head.work->poll   ? " (waits for others' parts)"
              : head.work->wait ? " (waits for an event)"
                                : "");
    else {
      fprintf(stderr, "a graph, %zu nodes left, of which", head.graph->left);
      for (size_t node : head.graph->ready)
        fprintf(stderr, " %s", head.graph->exec->nodes[node].work->name.c_str());
      fprintf(stderr, " wait\n");
    }
  }
  abort();
}

}  // namespace

double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) * 1e3 + double(t.tv_nsec) * 1e-6;
}

uint32_t draw(Driver& d) {
  d.random = d.random * 6364136223846793005ull + 1442695040888963407ull;
  return uint32_t(d.random >> 33);
}

// The first error of a device stays: every later call returns it.
void fail(Device& device, int error, const std::string& reason) {
  if (device.sticky) return;
  device.sticky = error;
  device.sticky_reason = reason;
  fprintf(stderr, "softcuda: device %d: error %d: %s\n", device.ordinal, error, reason.c_str());
}

namespace {
const Work* work_of(const Candidate& c) {
  const Item& head = c.stream->queue.front();
  return (c.node == kWhole ? head.work : head.graph->exec->nodes[c.node].work).get();
}

bool is_asleep(const Candidate& c) { return c.stream->device->asleep == work_of(c); }
}  // namespace

// Work that sleeps is woken when nothing else gets on here, each at most once. Whenever some has
// fallen asleep, the lock had been let go meanwhile, and the candidates are others.
bool step(Hold& hold) {
  Driver& d = driver();
  sweep(d);
  std::set<const Work*> woken;
  for (;;) {
    std::vector<Candidate> all, asleep;
    candidates(d, all);
    for (const Candidate& c : all)
      if (is_asleep(c) && !woken.count(work_of(c))) asleep.push_back(c);
    std::erase_if(all, is_asleep);
    order(d, all);
    bool stale = false;
    // Twice: a poll may have made one before it ready.
    for (int pass = 0; pass < 2 && !stale; pass++)
      for (const Candidate& c : all) {
        const Work* work = work_of(c);
        if (run_candidate(d, hold, c)) return true;
        stale = c.stream->device->asleep == work;
        if (!stale) continue;
        woken.insert(work);
        break;
      }
    if (stale) continue;
    if (asleep.empty()) return false;
    woken.insert(work_of(asleep[0]));
    if (run_candidate(d, hold, asleep[0])) return true;
  }
}

void get_on(Hold& hold, const std::function<bool()>& condition) {
  constexpr double kAtMostMs = 1;
  Driver& d = driver();
  const double since = now_ms();
  uint32_t left = d.settings.seed ? draw(d) % 3 * (draw(d) % 32) : ~0u;
  while (left-- && !condition() && step(hold) && now_ms() - since < kAtMostMs) {
  }
}

void wait_until(Hold& hold, const std::function<bool()>& condition) {
  Driver& d = driver();
  double since = now_ms();
  uint64_t seen = d.moved;
  // A poll may wait for another process, which cannot notify: it is asked often at first.
  constexpr long kFirstPause = 50, kLastPause = 20000;
  long pause_us = kFirstPause;
  while (!condition()) {
    if (step(hold)) {
      pause_us = kFirstPause;
      continue;
    }
    if (seen != d.moved || d.running) {
      seen = d.moved;
      since = now_ms();
    }
    if (now_ms() - since > d.settings.timeout_s * 1e3) report_standstill(d);
    d.changed.wait_for(hold, std::chrono::microseconds(pause_us));
    pause_us = std::min(2 * pause_us, kLastPause);
  }
}

void drain(Hold& hold, Stream& stream) {
  if (stream.queue.empty()) {
    IF_TSAN(__tsan_acquire(&stream.order);)
    return;
  }
  const uint64_t last = stream.queue.back().sequence;
  wait_until(hold, [&] { return stream.queue.empty() || stream.queue.front().sequence > last; });
  IF_TSAN(__tsan_acquire(&stream.order);)
}

bool idle(const Device& device) {
  for (const Stream* s : driver().streams)
    if (s->device == &device && !s->queue.empty()) return false;
  return true;
}

}  // namespace softcuda
