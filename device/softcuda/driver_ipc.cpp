// driver_ipc.cpp - device memory that processes of one machine and user share.
//
// Memory is private until it is asked for: then its bytes move into a nameless file, mapped at the
// same place. A handle says which process has that file open, and under which number.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "driver_state.h"

namespace softcuda {
namespace {

// What a handle holds; the rest of its 64 bytes is zero.
struct Shared {
  int process, file;
  uint64_t number;  // of the allocation in its process: numbers of files are used again
  uint64_t bytes, mapping_bytes, offset;
};
static_assert(sizeof(Shared) <= 64);

std::string name_of(uint64_t number) { return "softcuda-" + std::to_string(number); }

// Moves an allocation's bytes, in place, into a file that others can open.
int share(Hold& hold, Allocation& a) {
  static uint64_t next = 1;
  Driver& d = driver();
  if (!a.mapping) return kNotSupported;  // AddressSanitizer's own memory
  // A kernel that runs without the lock may be writing here.
  d.changed.wait(hold, [&] { return d.running == 0; });
  const size_t page = 4096, body = a.mapping_bytes - 2 * page;
  const int file = memfd_create(name_of(next).c_str(), MFD_CLOEXEC);
  if (file < 0) return kOutOfMemory;
  char* const at = static_cast<char*>(a.mapping) + page;
  const bool written = ftruncate(file, off_t(body)) == 0 &&
                       pwrite(file, at, body, 0) == ssize_t(body);
  if (!written || mmap(at, body, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != at)
    return close(file), int(kOutOfMemory);
  a.file = file;
  a.number = next++;
  return kOk;
}

// Where ranks are processes, one waits for what another's streams write, and that one may be
// waiting on its host: its streams go on all the same, as a GPU's do.
void keep_going() {
  static const bool once = [] {
    std::thread([] {
      for (;;) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        Hold hold(driver().lock);
        while (step(hold)) {
        }
      }
    }).detach();
    return true;
  }();
  (void)once;
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

API cuIpcGetMemHandle(char* handle, Address address) {
  ENTER;
  if (const int error = unsafe_in_capture()) return error;
  const auto i = d.allocations.find(address);
  if (i == d.allocations.end() || !i->second.device || i->second.imported) return kInvalidValue;
  Allocation& a = i->second;
  if (a.file < 0) {
    if (const int error = share(hold, a)) return error;
  }
  const Shared shared{getpid(), a.file, a.number, a.bytes, a.mapping_bytes,
                      address - Address(a.mapping)};
  memset(handle, 0, 64);
  memcpy(handle, &shared, sizeof shared);
  return kOk;
}

struct IpcHandle { char bytes[64]; };

API cuIpcOpenMemHandle_v2(Address* out, IpcHandle handle, unsigned flags) {
  ENTER;
  if (const int error = unsafe_in_capture()) return error;
  Shared shared;
  memcpy(&shared, handle.bytes, sizeof shared);
  if (flags != 1) return kInvalidValue;
  if (shared.process == getpid()) return kInvalidContext;  // as the driver has it
  const std::string path =
      "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.file);
  char name[128] = "";
  if (readlink(path.c_str(), name, sizeof name - 1) < 0 ||
      name != "/memfd:" + name_of(shared.number) + " (deleted)")
    return kInvalidHandle;
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kInvalidHandle;
  const size_t page = 4096, body = shared.mapping_bytes - 2 * page;
  char* const raw = static_cast<char*>(mmap(nullptr, shared.mapping_bytes, PROT_NONE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  const bool mapped = raw != MAP_FAILED &&
                      mmap(raw + page, body, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                           0) != MAP_FAILED;
  close(file);
  if (!mapped) return kOutOfMemory;
  Allocation a{shared.bytes, current_context->device, false, raw, shared.mapping_bytes};
  a.imported = true;
  *out = Address(raw) + shared.offset;
  d.allocations[*out] = a;
  keep_going();
  return kOk;
}

API cuIpcCloseMemHandle(Address address) {
  ENTER;
  if (const int error = unsafe_in_capture()) return error;
  const auto i = d.allocations.find(address);
  if (i == d.allocations.end() || !i->second.imported) return kInvalidValue;
  Device& device = *i->second.device;
  wait_until(hold, [&] { return idle(device); });
  const Allocation a = d.allocations[address];
  d.allocations.erase(address);
  munmap(a.mapping, a.mapping_bytes);
  return kOk;
}
