// driver_calls.cpp - counts of the calls that a program made, and faults that a test asks for.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver_state.h"

namespace softcuda {
namespace {

struct Counters {
  std::mutex lock;
  std::map<std::string, Counter*> all;
};
Counters& counters() {
  static Counters* c = new Counters;  // outlives every static destructor
  return *c;
}

void dump(const char* path) {
  FILE* out = fopen(path, "w");
  if (!out) return;
  std::lock_guard hold(counters().lock);
  for (const auto& [name, counter] : counters().all)
    fprintf(out, "%s %llu\n", name.c_str(), static_cast<unsigned long long>(counter->calls));
  fclose(out);
}

}  // namespace

Counter::Counter(const char* function) : name(function) {
  static const bool once = [] {
    const char* file = getenv("SOFTCUDA_CALLS");
    if (file && *file) atexit([] { dump(getenv("SOFTCUDA_CALLS")); });
    return true;
  }();
  (void)once;
  std::lock_guard hold(counters().lock);
  counters().all[function] = this;
}

namespace {
thread_local int depth = 0;
}
Call::Call(Counter& counter) {
  if (depth++ == 0) counter.calls++;
}
Call::~Call() { depth--; }

// Whether this launch, or this making of a graph ("cuGraphInstantiate"), is the one that
// SOFTCUDA_FAULT="part of a name:n,.." wants to fail.
bool fault_due(const std::string& kernel) {
  bool due = false;
  for (auto& [part, left] : driver().settings.faults)
    if (kernel.find(part) != std::string::npos && --left == 0) due = true;
  return due;
}

}  // namespace softcuda

using namespace softcuda;

// Calls of `name` so far; with "*", of all functions.
extern "C" __attribute__((visibility("default"))) unsigned long long softcudaCallCount(
    const char* name) {
  std::lock_guard hold(counters().lock);
  unsigned long long sum = 0;
  for (const auto& [function, counter] : counters().all)
    if (!strcmp(name, "*") || function == name) sum += counter->calls;
  return sum;
}

extern "C" __attribute__((visibility("default"))) void softcudaCallsReset(void) {
  std::lock_guard hold(counters().lock);
  for (const auto& entry : counters().all) entry.second->calls = 0;
}

extern "C" __attribute__((visibility("default"))) void softcudaCallsDump(const char* path) {
  dump(path);
}

// Calls so far, "name count" lines, into `out` (cut at `bytes`); returns the length that all of it
// has.
extern "C" __attribute__((visibility("default"))) size_t softcudaCallsText(char* out,
                                                                           size_t bytes) {
  std::lock_guard hold(counters().lock);
  std::string text;
  for (const auto& [name, counter] : counters().all)
    if (counter->calls) text += name + " " + std::to_string(counter->calls.load()) + "\n";
  if (bytes) {
    const size_t n = text.size() < bytes - 1 ? text.size() : bytes - 1;
    memcpy(out, text.data(), n);
    out[n] = 0;
  }
  return text.size();
}

// Asks for a fault as SOFTCUDA_FAULT does, from now on; an empty text takes all requests back.
extern "C" __attribute__((visibility("default"))) void softcudaFault(const char* kernel,
                                                                     long launch) {
  Hold hold(driver().lock);
  if (!kernel || !*kernel) {
    driver().settings.faults.clear();
  } else {
    driver().settings.faults.emplace_back(kernel, launch);
  }
}

// Another schedule from here on: 0 is the natural order.
extern "C" __attribute__((visibility("default"))) void softcudaSeed(unsigned long long seed) {
  Hold hold(driver().lock);
  driver().settings.seed = driver().random = seed;
  for (Device& device : driver().devices) device.emulator = std::make_unique<Emulator>(seed);
}
