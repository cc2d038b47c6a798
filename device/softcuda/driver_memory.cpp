// driver_memory.cpp - allocations, pools, copies and fills.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver_state.h"
#include "meter.h"

namespace softcuda {

const Allocation* find_allocation(Address address, size_t bytes) {
  const auto& all = driver().allocations;
  auto i = all.upper_bound(address);
  if (i == all.begin()) return nullptr;
  --i;
  return address - i->first <= i->second.bytes && bytes <= i->second.bytes - (address - i->first)
             ? &i->second
             : nullptr;
}

bool is_pinned(const void* address, size_t bytes) {
  const Allocation* a = find_allocation(Address(address), bytes);
  return a && !a->device;
}

namespace {

constexpr size_t kAlignment = 256;
constexpr unsigned char kFresh = 0xCD;  // what memory holds before anything is written

[[maybe_unused]] size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A range of its own, which ends (as far as the alignment lets it) at a page that no one may touch.
int allocate(Address* out, size_t bytes, Device* device) {
  Driver& d = driver();
  if (!bytes) return kInvalidValue;
  if (device && device->used + bytes > d.settings.memory_bytes) return kOutOfMemory;
  Allocation a{bytes, device, false, nullptr, 0};
#if defined(SOFTCUDA_ASAN)
  void* p = nullptr;
  if (posix_memalign(&p, kAlignment, bytes)) return kOutOfMemory;
#else
  const size_t page = 4096, body = up(up(bytes, kAlignment), page);
  char* raw = static_cast<char*>(mmap(nullptr, body + 2 * page, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (raw == MAP_FAILED) return kOutOfMemory;
  mprotect(raw, page, PROT_NONE);
  mprotect(raw + page + body, page, PROT_NONE);
  a.mapping = raw;
  a.mapping_bytes = body + 2 * page;
  void* p = raw + page + body - up(bytes, kAlignment);
#endif
  memset(p, kFresh, bytes);
  d.allocations[Address(p)] = a;
  if (device) device->used += bytes;
  *out = Address(p);
  return kOk;
}

int release(Address address, bool host) {
  Driver& d = driver();
  if (!address) return kOk;
  auto i = d.allocations.find(address);
  if (i == d.allocations.end() || i->second.registered || i->second.imported ||
      host != !i->second.device)
    return kInvalidValue;
  const Allocation a = i->second;
  if (a.device) a.device->used -= a.bytes;
  d.allocations.erase(i);
  if (a.file >= 0) close(a.file);
  if (a.mapping) {
    munmap(a.mapping, a.mapping_bytes);  // a later access faults
  } else {
    free(reinterpret_cast<void*>(address));
  }
  return kOk;
}

void show_range(const char* call, const char* what, Address address, size_t bytes) {
  fprintf(stderr, "softcuda: %s: the %s, %zu bytes at %#llx, is not inside an allocation\n", call,
          what, bytes, address);
}

// What a copy's ends are.
struct Ends {
  const Allocation *to, *from;
};

// The bytes themselves; the ranges are checked again, since memory may have been freed since.
int move_bytes(Address to, Address from, size_t bytes, bool check_to, bool check_from) {
  {
    Hold hold(driver().lock);
    if (check_to && !find_allocation(to, bytes))
      return show_range("copy", "destination", to, bytes), kIllegalAddress;
    if (check_from && !find_allocation(from, bytes))
      return show_range("copy", "source", from, bytes), kIllegalAddress;
  }
  if (Meter* meter = running_meter()) meter->note(bytes, false), meter->note(bytes, true);
  IF_TSAN(__tsan_read_range(reinterpret_cast<void*>(from), bytes);
          __tsan_write_range(reinterpret_cast<void*>(to), bytes);)
  memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return kOk;
}

// One asynchronous copy. Pageable memory is staged at the call (a source) or waited for (a
// destination), and has no place in a capture.
int copy(Hold& hold, const char* call, Address to, Address from, size_t bytes, Stream& s,
         bool device_to, bool device_from) {
  if (!bytes) return kOk;
  const Ends ends{find_allocation(to, bytes), find_allocation(from, bytes)};
  if (device_to && !ends.to) return show_range(call, "destination", to, bytes), kInvalidValue;
  if (device_from && !ends.from) return show_range(call, "source", from, bytes), kInvalidValue;
  Work work;
  work.kind = kCopyNode;
  work.name = call;
  if (s.capture && (!ends.to || !ends.from)) {
    fprintf(stderr, "softcuda: %s: pageable host memory in a capture\n", call);
    return invalidate(*s.capture, kCaptureUnsupported);
  }
  if (!ends.from) {
    auto staged = std::make_shared<std::vector<char>>(reinterpret_cast<char*>(from),
                                                      reinterpret_cast<char*>(from) + bytes);
    work.run = [=](Emulator&) {
      return move_bytes(to, Address(staged->data()), bytes, true, false);
    };
    return submit(s, std::move(work));
  }
  const bool wait = !ends.to;
  work.run = [=](Emulator&) { return move_bytes(to, from, bytes, !wait, true); };
  if (const int error = submit(s, std::move(work))) return error;
  if (wait) drain(hold, s);
  return s.device->sticky;
}

int copy_on(void* stream, const char* call, Address to, Address from, size_t bytes, bool device_to,
            bool device_from) {
  Driver& d = driver();
  Hold hold(d.lock);
  int error = enter();
  Stream* s = error ? nullptr : find_stream(stream, error);
  return error ? error : copy(hold, call, to, from, bytes, *s, device_to, device_from);
}

// Blocking copies: on the null stream, and done at return.
int copy_now(const char* call, Address to, Address from, size_t bytes, bool device_to,
             bool device_from) {
  Driver& d = driver();
  Hold hold(d.lock);
  if (const int error = enter()) return error;
  if (const int error = unsafe_in_capture()) return error;
  int error = 0;
  Stream* s = find_stream(nullptr, error);
  if (error) return error;
  if (const int failed = copy(hold, call, to, from, bytes, *s, device_to, device_from))
    return failed;
  drain(hold, *s);
  return s->device->sticky;
}

int fill(void* stream, const char* call, Address to, unsigned value, size_t width, size_t count,
         bool now) {
  Driver& d = driver();
  Hold hold(d.lock);
  if (const int error = enter()) return error;
  if (now) {
    if (const int error = unsafe_in_capture()) return error;
  }
  int error = 0;
  Stream* s = find_stream(stream, error);
  if (error) return error;
  const size_t bytes = width * count;
  if (!bytes) return kOk;
  if (to % width) return kInvalidValue;
  if (!find_allocation(to, bytes)) return show_range(call, "destination", to, bytes), kInvalidValue;
  Work work;
  work.kind = kFillNode;
  work.name = call;
  work.run = [=](Emulator&) {
    {
      Hold inside(driver().lock);
      if (!find_allocation(to, bytes))
        return show_range(call, "destination", to, bytes), int(kIllegalAddress);
    }
    IF_TSAN(__tsan_write_range(reinterpret_cast<void*>(to), bytes);)
    char* p = reinterpret_cast<char*>(to);
    if (width == 1) memset(p, int(value), bytes);
    else
      for (size_t i = 0; i < count; i++) memcpy(p + i * width, &value, width);
    return int(kOk);
  };
  if (const int failed = submit(*s, std::move(work))) return failed;
  if (now) drain(hold, *s);
  return s->device->sticky;
}

int pool;  // what the handle of the one default pool points to

}  // namespace
}  // namespace softcuda

using namespace softcuda;

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  ENTER;
  *total = d.settings.memory_bytes;
  *free_bytes = d.settings.memory_bytes - current_context->device->used;
  return kOk;
}
API cuMemAlloc_v2(Address* out, size_t bytes) {
  ENTER;
  if (const int error = unsafe_in_capture()) return error;
  return allocate(out, bytes, current_context->device);
}
API cuMemFree_v2(Address address) {
  ENTER;
  if (const int error = unsafe_in_capture()) return error;
  // As the driver does: everything that may still use it comes first.
  const Allocation* a = find_allocation(address, 0);
  if (a && a->device) {
    Device& device = *a->device;
    wait_until(hold, [&] { return idle(device); });
  }
  return release(address, false);
}
API cuMemAllocAsync(Address* out, size_t bytes, void* stream) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(stream, error);
  if (error) return error;
  if (s->capture) return invalidate(*s->capture, kCaptureUnsupported);
  return allocate(out, bytes, s->device);
}
API cuMemAllocFromPoolAsync(Address* out, size_t bytes, void*, void* stream) {
  return cuMemAllocAsync(out, bytes, stream);
}
API cuMemFreeAsync(Address address, void* stream) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(stream, error);
  if (error) return error;
  if (s->capture) return invalidate(*s->capture, kCaptureUnsupported);
  if (!find_allocation(address, 1)) return kInvalidValue;
  Work work;
  work.name = "cuMemFreeAsync";
  work.poll = [address](void*) { return release(address, false); };
  return submit(*s, std::move(work));
}
API cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  ENTER;
  if (flags & ~7u) return kInvalidValue;
  if (const int error = unsafe_in_capture()) return error;
  Address address = 0;
  const int error = allocate(&address, bytes, nullptr);
  *out = reinterpret_cast<void*>(address);
  return error;
}
API cuMemAllocHost_v2(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
API cuMemFreeHost(void* address) {
  ENTER;
  if (const int error = unsafe_in_capture()) return error;
  Device& device = *current_context->device;
  wait_until(hold, [&] { return idle(device); });
  return release(Address(address), true);
}
API cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  ENTER;
  if (!address || !bytes) return kInvalidValue;
  if (const int error = unsafe_in_capture()) return error;
  if (find_allocation(Address(address), 1) || find_allocation(Address(address) + bytes - 1, 1))
    return kHostMemoryRegistered;
  d.allocations[Address(address)] = {bytes, nullptr, true, nullptr, 0};
  return kOk;
}
API cuMemHostUnregister(void* address) {
  ENTER;
  if (const int error = unsafe_in_capture()) return error;
  auto i = d.allocations.find(Address(address));
  if (i == d.allocations.end() || !i->second.registered) return kHostMemoryNotRegistered;
  Device& device = *current_context->device;
  wait_until(hold, [&] { return idle(device); });
  d.allocations.erase(Address(address));
  return kOk;
}
API cuMemHostGetDevicePointer_v2(Address* out, void* address, unsigned) {
  ENTER;
  if (!is_pinned(address, 1)) return kInvalidValue;
  *out = Address(address);
  return kOk;
}
API cuMemHostGetFlags(unsigned* flags, void* address) {
  ENTER;
  *flags = 3;
  return is_pinned(address, 1) ? kOk : kInvalidValue;
}
API cuPointerGetAttribute(void* value, int which, Address address) {
  ENTER;
  const Allocation* a = find_allocation(address, 1);
  if (!a) return kInvalidValue;
  if (which == 2) *static_cast<int*>(value) = a->device ? 2 : 1;             // memory type
  else if (which == 9) *static_cast<int*>(value) = a->device ? a->device->ordinal : 0;
  else if (which == 3 || which == 4)
    *static_cast<Address*>(value) = address;  // device, host pointer
  else return kNotSupported;
  return kOk;
}
API cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
  ENTER;
  auto i = d.allocations.upper_bound(address);
  if (!find_allocation(address, 1)) return kInvalidValue;
  --i;
  if (base) *base = i->first;
  if (bytes) *bytes = i->second.bytes;
  return kOk;
}

// A descriptor that other drivers know the memory by. The network devices of tests reach it by its
// address: the file is empty.
API cuMemGetHandleForAddressRange(void* handle, Address address, size_t bytes, int kind,
                                  unsigned long long flags) {
  ENTER;
  const size_t page = 4096;
  if (kind != 1 || flags) return kNotSupported;  // 1: a dmabuf's descriptor
  if (!bytes || address % page || bytes % page) return kInvalidValue;
  const Allocation* a = find_allocation(address, bytes);
  if (!a || a->device != current_context->device) return kInvalidValue;
  const int file = memfd_create("softcuda-dmabuf", MFD_CLOEXEC);
  if (file < 0) return kOutOfMemory;
  *static_cast<int*>(handle) = file;
  return kOk;
}

API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
  COUNT;
  return copy_on(stream, __func__, to, Address(from), bytes, true, false);
}
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  COUNT;
  return copy_on(stream, __func__, Address(to), from, bytes, false, true);
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
  COUNT;
  return copy_on(stream, __func__, to, from, bytes, true, true);
}
API cuMemcpyPeerAsync(Address to, Context*, Address from, Context*, size_t bytes, void* stream) {
  COUNT;
  return copy_on(stream, __func__, to, from, bytes, true, true);
}
API cuMemcpyAsync(Address to, Address from, size_t bytes, void* stream) {
  COUNT;
  return copy_on(stream, __func__, to, from, bytes, false, false);
}
API cuMemcpy(Address to, Address from, size_t bytes) {
  COUNT;
  return copy_now(__func__, to, from, bytes, false, false);
}
API cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  COUNT;
  return copy_now(__func__, to, Address(from), bytes, true, false);
}
API cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  COUNT;
  return copy_now(__func__, Address(to), from, bytes, false, true);
}
API cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  COUNT;
  return copy_now(__func__, to, from, bytes, true, true);
}
API cuMemsetD8Async(Address to, unsigned char value, size_t count, void* stream) {
  COUNT;
  return fill(stream, __func__, to, value, 1, count, false);
}
API cuMemsetD16Async(Address to, unsigned short value, size_t count, void* stream) {
  COUNT;
  return fill(stream, __func__, to, value, 2, count, false);
}
API cuMemsetD32Async(Address to, unsigned value, size_t count, void* stream) {
  COUNT;
  return fill(stream, __func__, to, value, 4, count, false);
}
API cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
  COUNT;
  return fill(nullptr, __func__, to, value, 1, count, true);
}
API cuMemsetD32_v2(Address to, unsigned value, size_t count) {
  COUNT;
  return fill(nullptr, __func__, to, value, 4, count, true);
}

API cuDeviceGetDefaultMemPool(void** out, int device) {
  HOLD;
  if (!device_at(device)) return kInvalidDevice;
  *out = &pool;
  return kOk;
}
API cuDeviceGetMemPool(void** out, int device) { return cuDeviceGetDefaultMemPool(out, device); }
API cuMemPoolSetAttribute(void*, int, void*) {
  COUNT;
  return kOk;
}
API cuMemPoolGetAttribute(void*, int, void* value) {
  COUNT;
  *static_cast<uint64_t*>(value) = 0;
  return kOk;
}
API cuMemPoolTrimTo(void*, size_t) {
  COUNT;
  return kOk;
}
