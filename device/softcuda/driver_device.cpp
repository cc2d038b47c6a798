// driver_device.cpp - initialisation, devices, contexts, error names.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "driver_state.h"

namespace softcuda {

thread_local Context* current_context = nullptr;
thread_local bool in_host_function = false;

namespace {

// What a setting says; where that makes no sense it says so, and `is_sound` is no longer so.
struct Reader {
  bool is_sound = true;

  void refuse(const char* name, const std::string& why) {
    fprintf(stderr, "softcuda: %s=%s: %s\n", name, getenv(name), why.c_str());
    is_sound = false;
  }

  uint64_t number(const char* name, uint64_t otherwise, uint64_t least, uint64_t most) {
    const char* text = getenv(name);
    if (!text || !*text) return otherwise;
    uint64_t found = 0;
    if (parse(text, &found) && found >= least && found <= most) return found;
    refuse(name, "expected a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most));
    return otherwise;
  }

  // SOFTCUDA_FAULT="part of a kernel's name:n,.."
  std::vector<std::pair<std::string, long>> faults() {
    const char* const name = "SOFTCUDA_FAULT";
    std::vector<std::pair<std::string, long>> faults;
    const char* text = getenv(name);
    std::istringstream words(text ? text : "");
    for (std::string word; std::getline(words, word, ',');) {
      const size_t colon = word.rfind(':');
      uint64_t nth = 0;
      if (colon == 0 || colon == std::string::npos || !parse(word.c_str() + colon + 1, &nth) ||
          nth == 0 || nth > INT32_MAX) {
        refuse(name, "expected KERNEL:N, and more of them after commas, N from 1 on");
        return {};
      }
      faults.emplace_back(word.substr(0, colon), long(nth));
    }
    return faults;
  }

  // Of a file that is written at the end: now is the time to say that it cannot be.
  void file(const char* name) {
    const char* path = getenv(name);
    if (!path || !*path) return;
    int at = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (at >= 0) {
      unlink(path);
    } else if (errno == EEXIST) {
      at = open(path, O_WRONLY | O_APPEND | O_NONBLOCK);
    }
    if (at >= 0) {
      close(at);
    } else if (errno != ENXIO) {  // a pipe that no one reads yet
      refuse(name, std::string("the file cannot be written: ") + strerror(errno));
    }
  }

 private:
  static bool parse(const char* text, uint64_t* found) {
    if (*text < '0' || *text > '9') return false;
    char* end = nullptr;
    errno = 0;
    *found = strtoull(text, &end, 0);
    return !*end && !errno;
  }
};

}  // namespace

Driver::Driver() {
  Reader reader;
  settings.devices = int(reader.number("SOFTCUDA_DEVICES", 1, 0, 256));
  settings.memory_bytes = size_t(reader.number("SOFTCUDA_MEMORY_MIB", 4096, 1, 1 << 30)) << 20;
  settings.seed = random = reader.number("SOFTCUDA_SEED", 0, 0, UINT64_MAX);
  settings.timeout_s = double(reader.number("SOFTCUDA_TIMEOUT_S", 60, 1, INT32_MAX));
  settings.faults = reader.faults();
  for (const char* name : {"SOFTCUDA_METER", "SOFTCUDA_CALLS"}) reader.file(name);
  settings.are_sound = reader.is_sound;
  const size_t n = size_t(settings.devices);
  devices = std::vector<Device>(n);
  contexts = std::vector<Context>(n);
  null_streams = std::vector<Stream>(n);
  for (size_t i = 0; i < n; i++) {
    devices[i].ordinal = int(i);
    devices[i].emulator = std::make_unique<Emulator>(settings.seed);
    contexts[i].device = &devices[i];
    null_streams[i].device = &devices[i];
    null_streams[i].null = true;
    streams.insert(&null_streams[i]);
  }
}

Driver& driver() {
  // Lives as long as the process: destructors of a program may still call.
  static Driver* d = new Driver;
  return *d;
}

Device* device_at(int ordinal) {
  Driver& d = driver();
  return ordinal >= 0 && ordinal < int(d.devices.size()) ? &d.devices[size_t(ordinal)] : nullptr;
}

int enter(bool needs_context) {
  if (!driver().initialized) return kNotInitialized;
  if (in_host_function) return kNotPermitted;
  if (!needs_context) return kOk;
  if (!current_context) return kInvalidContext;
  return current_context->device->sticky;
}

}  // namespace softcuda

using namespace softcuda;

namespace {

struct ErrorName { int code; const char *name, *text; };
const ErrorName kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which violated constraints "
     "specific to instantiated graph update"},
};
const ErrorName* find_error(int code) {
  for (const ErrorName& e : kErrors)
    if (e.code == code) return &e;
  return nullptr;
}

// The attributes that programs ask for; the figures of an H200 except for the two multiprocessors,
// which keep grids small.
int attribute(int which) {
  switch (which) {
    case 1: return 1024;        // threads per block
    case 2: case 3: return 1024;
    case 4: return 64;
    case 5: return 0x7fffffff;  // grid
    case 6: case 7: return 65535;
    case 8: return 48 << 10;    // shared memory per block
    case 9: return 64 << 10;    // constant memory
    case 10: return 32;         // warp
    case 11: return 0x7fffffff; // pitch
    case 12: return 65536;      // registers per block
    case 13: return 1980000;    // kHz
    case 14: return 512;        // texture alignment
    case 15: return 1;          // overlaps copies
    case 16: return 2;          // multiprocessors
    case 19: return 1;          // maps host memory
    case 31: return 1;          // concurrent kernels
    case 36: return 3201000;    // memory kHz
    case 37: return 6144;       // memory bus bits
    case 38: return 50 << 20;   // L2
    case 39: return 2048;       // threads per multiprocessor
    case 40: return 2;          // copy engines
    case 41: return 1;          // unified addressing
    case 75: return 9;          // compute capability
    case 76: return 0;
    case 78: return 1;          // stream priorities
    case 81: return 228 << 10;  // shared memory per multiprocessor
    case 82: return 65536;      // registers per multiprocessor
    case 95: return 1;          // cooperative launch
    case 97: return 227 << 10;  // shared memory per block, opted in
    case 106: return 32;        // blocks per multiprocessor
    case 111: return 1 << 10;   // shared memory reserved per block
    case 115: return 1;         // memory pools
    case 122: return 1;         // stream memory operations
    case 124: return 1;         // dmabufs
    default: return 0;
  }
}

}  // namespace

API cuInit(unsigned flags) {
  HOLD;
  if (flags) return kInvalidValue;
  if (!d.settings.are_sound) return kInvalidValue;
  if (d.devices.empty()) return 100;
  d.initialized = true;
  return kOk;
}
API cuDriverGetVersion(int* version) {
  COUNT;
  *version = 13000;
  return kOk;
}
API cuGetErrorName(int code, const char** name) {
  COUNT;
  const ErrorName* e = find_error(code);
  *name = e ? e->name : nullptr;
  return e ? kOk : kInvalidValue;
}
API cuGetErrorString(int code, const char** text) {
  COUNT;
  const ErrorName* e = find_error(code);
  *text = e ? e->text : nullptr;
  return e ? kOk : kInvalidValue;
}
API cuDeviceGetCount(int* count) {
  HOLD;
  if (!d.initialized) return kNotInitialized;
  *count = int(d.devices.size());
  return kOk;
}
API cuDeviceGet(int* device, int ordinal) {
  HOLD;
  if (!d.initialized) return kNotInitialized;
  if (!device_at(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kOk;
}
API cuDeviceGetName(char* name, int bytes, int device) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  const char* as = getenv("SOFTCUDA_NAME");
  snprintf(name, size_t(bytes), "%s", as && *as ? as : "Headlong software device");
  return kOk;
}
API cuDeviceGetUuid_v2(char* uuid, int device) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  memset(uuid, 0, 16);
  memcpy(uuid, "softcuda", 8);
  uuid[15] = char(device);
  return kOk;
}
API cuDeviceGetUuid(char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API cuDeviceGetPCIBusId(char* id, int bytes, int device) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  // Devices of two processes are two.
  snprintf(id, size_t(bytes), "%04x:%02x:00.0", getpid() & 0xffff, device);
  return kOk;
}
API cuDeviceTotalMem_v2(size_t* bytes, int device) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  *bytes = d.settings.memory_bytes;
  return kOk;
}
API cuDeviceGetAttribute(int* value, int which, int device) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  *value = which == 33 ? device : attribute(which);  // 33: PCI bus
  return kOk;
}
API cuDeviceCanAccessPeer(int* can, int device, int peer) {
  HOLD;
  if (!device_at(device) || !device_at(peer)) return kInvalidDevice;
  *can = device != peer;
  return kOk;
}
API cuDeviceGetP2PAttribute(int* value, int which, int, int) {
  COUNT;
  *value = which == 1 || which == 2 || which == 3;
  return kOk;
}
API cuDevicePrimaryCtxRetain(Context** context, int device) {
  HOLD;
  if (!d.initialized) return kNotInitialized;
  if (!device_at(device)) return kInvalidDevice;
  device_at(device)->retained++;
  *context = &d.contexts[size_t(device)];
  return kOk;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  device_at(device)->retained--;
  return kOk;
}
API cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  *flags = 0;
  *active = device_at(device)->retained > 0;
  return kOk;
}
API cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) {
  HOLD;
  return device_at(device) ? kOk : kInvalidDevice;
}
API cuCtxSetCurrent(Context* context) {
  HOLD;
  if (!d.initialized) return kNotInitialized;
  if (context && (context < d.contexts.data() || context >= d.contexts.data() + d.contexts.size()))
    return kInvalidContext;
  current_context = context;
  return kOk;
}
API cuCtxGetCurrent(Context** context) {
  COUNT;
  *context = current_context;
  return kOk;
}
thread_local std::vector<Context*> pushed;
API cuCtxPushCurrent_v2(Context* context) {
  COUNT;
  pushed.push_back(current_context);
  current_context = context;
  return kOk;
}
API cuCtxPopCurrent_v2(Context** context) {
  COUNT;
  if (context) *context = current_context;
  current_context = pushed.empty() ? nullptr : pushed.back();
  if (!pushed.empty()) pushed.pop_back();
  return kOk;
}
API cuCtxGetDevice(int* device) {
  ENTER;
  *device = current_context->device->ordinal;
  return kOk;
}
API cuCtxGetApiVersion(Context*, unsigned* version) {
  COUNT;
  *version = 13000;
  return kOk;
}
API cuCtxSetFlags(unsigned) {
  ENTER;
  return kOk;
}
API cuCtxGetFlags(unsigned* flags) {
  ENTER;
  *flags = 0;
  return kOk;
}
API cuCtxSetLimit(int, size_t) {
  ENTER;
  return kOk;
}
API cuCtxGetLimit(size_t* value, int) {
  ENTER;
  *value = 1024;
  return kOk;
}
API cuCtxGetCacheConfig(int* config) {
  ENTER;
  *config = 0;
  return kOk;
}
API cuCtxSetCacheConfig(int) {
  ENTER;
  return kOk;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER;
  *least = 0;
  *greatest = -5;
  return kOk;
}
API cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
  ENTER;
  if (flags || !peer) return kInvalidValue;
  if (peer == current_context) return kInvalidDevice;
  return current_context->device->peers.insert(peer->device->ordinal).second ? kOk
                                                                             : kPeerAccessAlready;
}
API cuCtxDisablePeerAccess(Context* peer) {
  ENTER;
  return current_context->device->peers.erase(peer->device->ordinal) ? kOk : kPeerAccessNot;
}
API cuCtxSynchronize(void) {
  ENTER;
  Device& device = *current_context->device;
  // Not while a stream of this context is captured by this thread, or in global mode. (The guide
  // forbids it for a capture of any thread; threads whose captures are their own affair are let
  // through here, so that tests may run side by side.)
  for (Capture* c : d.captures)
    if (c->origin->device == &device && (c->mode == 0 || c->thread == this_thread()))
      return invalidate(*c, kCaptureUnsupported);
  wait_until(hold, [&] { return idle(device); });
  IF_TSAN(__tsan_acquire(&device.order);)  // of streams, too, that are no more
  return device.sticky;
}
API cuProfilerStart(void) {
  COUNT;
  return kOk;
}
API cuProfilerStop(void) {
  COUNT;
  return kOk;
}
