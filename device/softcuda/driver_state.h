// driver_state.h - the objects of the software driver, and how work gets from a stream to its
// execution.
//
// One lock guards everything. Streams are queues; work is run only by threads that synchronise
// (Scheduler in driver_scheduler.cpp), one operation of a device at a time, operations of several
// devices on several host threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "emulator.h"
#include "sanitizers.h"

namespace softcuda {

enum Error : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kPeerAccessAlready = 704,
  kPeerAccessNot = 705,
  kHostMemoryRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kTimeout = 909,
  kGraphUpdateFailure = 910
};

using Address = unsigned long long;
struct Stream;
struct Capture;

// What the driver's node types are called in cuGraphNodeGetType.
enum NodeKind : int {
  kKernelNode = 0,
  kCopyNode = 1,
  kFillNode = 2,
  kHostNode = 3,
  kGraphNode = 4,
  kEmptyNode = 5,
  kWaitNode = 6,
  kRecordNode = 7
};

struct Device {
  int ordinal = 0;
  size_t used = 0;              // bytes of device memory
  int sticky = 0;               // the error after which nothing works any more
  std::string sticky_reason;
  bool busy = false;            // an operation of this device runs
  const struct Work* asleep =
      nullptr;  // the one that does, while it waits for something outside of the device
  int retained = 0;
  char order = 0;               // ThreadSanitizer's token of all work so far
  std::set<int> peers;          // devices whose memory it may access
  std::unique_ptr<Emulator> emulator;
};

struct Context { Device* device; };

// The completion of one cuEventRecord.
struct Record {
  bool done = false;
  double at_ms = 0;
  char order = 0;   // ThreadSanitizer's token of what came before
};
struct Event {
  Device* device;
  bool timing;
  std::shared_ptr<Record> last;      // null: never recorded
  Capture* capture = nullptr;        // recorded in this capture (while it lasts)
  std::vector<size_t> dependencies;  // nodes of the capture that it stands for
};

struct GraphRun;

// ThreadSanitizer: the work of one stream is a thread of its own, with fibers of its own, which
// knows of other streams' work what events tell it. Captured work belongs to the stream that it was
// captured on. Nothing of this in other builds.
struct Lane {
  std::unique_ptr<Emulator> emulator;
  void* tsan = nullptr;
  ~Lane();
};

// One operation, shared by the queue of a stream or by a graph and all its runs.
struct Work {
  NodeKind kind = kEmptyNode;
  std::string name;
  // Exactly one of these, or none (an empty operation).
  std::function<int(Emulator&)> run;  // without the lock, with the device to itself
  std::function<int(void* state)> poll;                   // under the lock; -1: not yet
  std::shared_ptr<Record> wait;                           // can run when it is done
  // Nodes of a graph for events that live outside of it (kept alive by `keep`).
  Event* record_event = nullptr;
  Event* wait_event = nullptr;
  std::shared_ptr<Record> record;                         // done when this runs
  std::shared_ptr<struct Exec> graph;                     // a launch of a graph
  std::shared_ptr<void> keep;
  size_t state_bytes = 0;
  std::shared_ptr<Lane> lane;
  mutable char order = 0;  // ThreadSanitizer's token of what the host did before enqueueing
};
using WorkRef = std::shared_ptr<const Work>;

struct Node {
  WorkRef work;
  std::vector<size_t> dependencies;
};
struct Capture {
  Stream* origin;
  int mode;
  uint64_t thread;
  uint64_t id;
  bool invalid = false;
  std::set<Stream*> members;
  std::vector<Node> nodes;
  std::set<Event*> events;
};
struct Graph {
  std::vector<Node> nodes;
  Device* device;
};
struct GraphNodeHandle { Graph* graph; size_t index; };
struct Exec {
  std::vector<Node> nodes;
  Device* device;
  bool running = false;   // one run of an instance at a time
};

struct GraphRun {
  std::shared_ptr<Exec> exec;
  std::vector<uint32_t> missing;              // unfinished dependencies
  std::vector<std::vector<size_t>> dependents;
  std::vector<uint8_t> started;
  std::vector<std::vector<char>> state;
  std::vector<size_t> ready;
  size_t left;
  std::vector<std::shared_ptr<Record>> records;  // of nodes for events: this launch's
  std::vector<char> order;                    // ThreadSanitizer's tokens of finished nodes
};

struct Item {
  WorkRef work;
  uint64_t sequence;
  bool running = false;
  std::vector<char> state;
  std::vector<std::shared_ptr<Record>> records;  // where it launches a graph, by node
  std::unique_ptr<GraphRun> graph;
};
struct Stream {
  Device* device;
  bool blocking = false;        // synchronises with the null stream
  bool null = false;
  bool destroyed = false;
  int priority = 0;
  unsigned flags = 0;
  uint64_t weight = 0;          // the scheduler's current preference
  std::deque<Item> queue;
  Capture* capture = nullptr;
  std::vector<size_t> tail;     // nodes that the next captured operation comes after
  char order = 0;               // ThreadSanitizer's token of what ran before
  std::shared_ptr<Lane> lane;
};

struct Allocation {
  size_t bytes;
  Device* device;               // null: page-locked host memory
  bool registered = false;      // host memory of the program
  void* mapping = nullptr;
  size_t mapping_bytes = 0;
  // Memory that processes share (driver_ipc.cpp): its file, where this process has made it; or
  // whether another has.
  int file = -1;
  uint64_t number = 0;
  bool imported = false;
};

struct Module {
  Device* device;
  void* handle;
  const HostcudaModule* table;
};
struct Function {
  Module* module;
  const HostcudaKernel* kernel;
  int max_dynamic = 48 << 10;
};

struct Settings {
  int devices;
  size_t memory_bytes;
  uint64_t seed;
  double timeout_s;
  std::vector<std::pair<std::string, long>> faults;
  bool are_sound;  // else nothing is initialised
};

struct Driver {
  std::recursive_mutex lock;
  std::condition_variable_any changed;
  Settings settings;
  bool initialized = false;
  std::vector<Device> devices;
  std::vector<Context> contexts;
  std::vector<Stream> null_streams;
  std::set<Stream*> streams;
  std::map<Event*, std::shared_ptr<Event>> events;
  std::set<Graph*> graphs;
  std::map<Exec*, std::shared_ptr<Exec>> execs;
  std::set<Module*> modules;
  std::set<Function*> functions;
  std::map<Address, Allocation> allocations;
  std::set<Capture*> captures;
  std::vector<std::unique_ptr<GraphNodeHandle>> node_handles;
  uint64_t sequence = 0, moved = 0, random = 0, next_capture = 1;
  int running = 0;
  Driver();
};
Driver& driver();
using Hold = std::unique_lock<std::recursive_mutex>;

uint32_t draw(Driver& d);
double now_ms();

// --- driver_device.cpp
extern thread_local Context* current_context;
extern thread_local bool in_host_function;
int enter(bool needs_context = true);  // checks that come before every call that does something
int unsafe_in_capture();  // 900 (and the captures invalid) where a capture forbids the call
Device* device_at(int ordinal);

// --- driver_stream.cpp
Stream* find_stream(void* handle, int& error);
Stream* null_stream(Device& device);
int submit(Stream& stream, Work work);        // into the queue, or into the capture
int invalidate(Capture& capture, int error);
uint64_t this_thread();

// --- driver_scheduler.cpp
bool step(Hold& hold);  // runs one operation; false: none can run
// A device gets on while the program asks: a few operations, or none.
void get_on(Hold& hold, const std::function<bool()>& condition);
void wait_until(Hold& hold,
                const std::function<bool()>& condition);  // runs work until the condition holds
void drain(Hold& hold, Stream& stream);                   // waits for what is in the queue now
bool idle(const Device& device);
void fail(Device& device, int error, const std::string& reason);

// --- driver_memory.cpp
const Allocation* find_allocation(Address address, size_t bytes);
bool is_pinned(const void* address, size_t bytes);

// --- driver_calls.cpp
struct Counter {
  const char* name;
  std::atomic<uint64_t> calls{0};
  explicit Counter(const char* function);
};
struct Call {
  explicit Call(Counter& counter);
  ~Call();
};
bool fault_due(const std::string& kernel);

}  // namespace softcuda

#define API extern "C" __attribute__((visibility("default"))) int
// First lines of every call: counted (unless another call makes it), and under the lock.
#define COUNT                                   \
  static ::softcuda::Counter counter(__func__); \
  const ::softcuda::Call call_in_progress(counter)
#define HOLD                              \
  COUNT;                                  \
  ::softcuda::Driver& d = ::softcuda::driver(); \
  ::softcuda::Hold hold(d.lock);          \
  (void)d
#define ENTER \
  HOLD;       \
  if (const int error = ::softcuda::enter()) return error
