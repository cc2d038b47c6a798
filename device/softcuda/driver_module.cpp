// driver_module.cpp - compiled kernels: loading, looking up, launching.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "driver_state.h"
#include "meter.h"

namespace softcuda {
namespace {

#if defined(SOFTCUDA_ASAN) || defined(SOFTCUDA_TSAN)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr size_t kMaxDynamicShared = 227 << 10, kDefaultShared = 48 << 10;

// The length of a shared object from its section table, which ld puts last.
size_t image_bytes(const unsigned char* image) {
  uint64_t sections;
  uint16_t entry, count;
  memcpy(&sections, image + 0x28, 8);
  memcpy(&entry, image + 0x3A, 2);
  memcpy(&count, image + 0x3C, 2);
  return sections + size_t(entry) * count;
}

// Writes the image to a file of its own: the dynamic loader takes files of one name, or one file,
// for the same object, and each load must have its own shared variables.
std::string write_image(const unsigned char* image, size_t bytes) {
  const char* base = getenv("TMPDIR");
  std::string path = std::string(base && *base ? base : "/tmp") + "/softcuda-module-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return "";
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = write(file, image + done, bytes - done);
    if (n <= 0) {
      close(file);
      unlink(path.c_str());
      return "";
    }
    done += size_t(n);
  }
  close(file);
  return path;
}

// The file is needed no more, but by the sanitizers and the meter, which find source lines in it:
// they get it until the process ends.
void remove_image(const std::string& path) {
  if (!kSanitized && !is_metered()) {
    unlink(path.c_str());
    return;
  }
  static std::vector<std::string>* kept = [] {
    atexit([] {
      for (const std::string& p : *kept) unlink(p.c_str());
    });
    return new std::vector<std::string>;
  }();
  kept->push_back(path);
}

int load(Module** out, const void* data) {
  Driver& d = driver();
  const unsigned char* image = static_cast<const unsigned char*>(data);
  if (memcmp(image, "\177ELF", 4) != 0) return kInvalidImage;
  if (image[18] != 62) return 209;  // not for x86-64 but a GPU's: CUDA_ERROR_NO_BINARY_FOR_GPU
  const std::string path = write_image(image, image_bytes(image));
  if (path.empty()) return kOutOfMemory;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  remove_image(path);
  if (!handle) return fprintf(stderr, "softcuda: %s\n", dlerror()), int(kInvalidImage);
  auto* table = static_cast<const HostcudaModule*>(dlsym(handle, "hostcuda_module"));
  if (!table || table->version != kHostcudaVersion) {
    fprintf(stderr, "softcuda: a module that another version of libnvrtc has compiled\n");
    dlclose(handle);
    return kInvalidImage;
  }
  *table->runtime = &kRuntime;
  *out = new Module{current_context->device, handle, table};
  d.modules.insert(*out);
  return kOk;
}

size_t static_shared(const Function& f) {
  return size_t(f.module->table->shared_end - f.module->table->shared_begin);
}

int check_shape(const Function& f, dim3 grid, dim3 block, unsigned dynamic) {
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return kInvalidValue;
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return kInvalidValue;
  const size_t threads = size_t(block.x) * block.y * block.z;
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024) return kInvalidValue;
  if (f.kernel->max_threads && threads > f.kernel->max_threads) {
    fprintf(stderr, "softcuda: kernel %s: %zu threads in a block, __launch_bounds__ says %u\n",
            f.kernel->name, threads, f.kernel->max_threads);
    return kLaunchOutOfResources;
  }
  if (dynamic > size_t(f.max_dynamic)) {
    fprintf(stderr, "softcuda: kernel %s: %u bytes of dynamic shared memory, allowed are %d\n",
            f.kernel->name, dynamic, f.max_dynamic);
    return kInvalidValue;
  }
  return kOk;
}

// The argument bytes are copied now, once for all replays.
struct Arguments {
  std::vector<std::vector<char>> bytes;
  std::vector<void*> pointers;
};
std::shared_ptr<Arguments> copy_arguments(const HostcudaKernel& k, void* const* parameters) {
  auto a = std::make_shared<Arguments>();
  for (unsigned i = 0; i < k.num_parameters; i++) {
    const char* p = static_cast<const char*>(parameters[i]);
    a->bytes.emplace_back(p, p + k.sizes[i]);
  }
  for (auto& bytes : a->bytes) a->pointers.push_back(bytes.data());
  return a;
}

int launch(Function* f, dim3 grid, dim3 block, unsigned dynamic, void* handle, void** parameters,
           void** extra) {
  Driver& d = driver();
  Hold hold(d.lock);
  if (const int error = enter()) return error;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  if (!d.functions.count(f) || f->module->device != s->device) return kInvalidHandle;
  if (const int bad = check_shape(*f, grid, block, dynamic)) return bad;
  if (extra || (f->kernel->num_parameters && !parameters)) return kInvalidValue;
  const std::shared_ptr<Arguments> arguments = copy_arguments(*f->kernel, parameters);
  Work work;
  work.kind = kKernelNode;
  work.name = f->kernel->name;
  const HostcudaModule* table = f->module->table;
  const HostcudaKernel* kernel = f->kernel;
  work.run = [=](Emulator& emulator) {
    return emulator.run({table, kernel, grid, block, dynamic, arguments->pointers.data()});
  };
  return submit(*s, std::move(work));
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

API cuModuleLoadData(Module** out, const void* image) {
  ENTER;
  if (!image) return kInvalidValue;
  if (const int error = unsafe_in_capture()) return error;
  return load(out, image);
}
API cuModuleLoadDataEx(Module** out, const void* image, unsigned, int*, void**) {
  COUNT;
  return cuModuleLoadData(out, image);
}
API cuModuleLoad(Module** out, const char* path) {
  COUNT;
  std::ifstream in(path, std::ios::binary);
  if (!in) return 301;  // CUDA_ERROR_FILE_NOT_FOUND
  const std::string image{std::istreambuf_iterator<char>(in), {}};
  return image.size() < 64 ? int(kInvalidImage) : cuModuleLoadData(out, image.data());
}
API cuModuleUnload(Module* m) {
  HOLD;
  if (!d.modules.count(m)) return kInvalidHandle;
  if (const int error = unsafe_in_capture()) return error;
  wait_until(hold, [&] { return idle(*m->device); });
  d.modules.erase(m);
  std::erase_if(d.functions, [&](Function* f) {
    const bool of_module = f->module == m;
    if (of_module) delete f;
    return of_module;
  });
  delete m;  // the code stays mapped: a graph may still hold it
  return kOk;
}
API cuModuleGetFunction(Function** out, Module* m, const char* name) {
  ENTER;
  if (!d.modules.count(m)) return kInvalidHandle;
  for (unsigned i = 0; i < m->table->num_kernels; i++) {
    if (strcmp(m->table->kernels[i].name, name)) continue;
    for (Function* f : d.functions)
      if (f->module == m && f->kernel == &m->table->kernels[i]) return *out = f, kOk;
    *out = new Function{m, &m->table->kernels[i]};
    d.functions.insert(*out);
    return kOk;
  }
  return kNotFound;
}
API cuModuleGetGlobal_v2(Address*, size_t*, Module*, const char*) {
  ENTER;
  return kNotFound;
}
API cuFuncGetAttribute(int* value, int which, Function* f) {
  ENTER;
  if (!d.functions.count(f)) return kInvalidHandle;
  switch (which) {
    case 0: *value = f->kernel->max_threads ? int(f->kernel->max_threads) : 1024; break;
    case 1: *value = int(static_shared(*f)); break;  // of the whole module: an upper bound
    case 4: *value = 32; break;                      // registers
    case 5: case 6: *value = 90; break;              // PTX, binary version
    case 8: *value = f->max_dynamic; break;
    default: *value = 0;
  }
  return kOk;
}
API cuFuncSetAttribute(Function* f, int which, int value) {
  ENTER;
  if (!d.functions.count(f)) return kInvalidHandle;
  if (which != 8) return kOk;
  if (value < 0 || size_t(value) + static_shared(*f) > kMaxDynamicShared) return kInvalidValue;
  f->max_dynamic =
      std::max(value, int(kDefaultShared - std::min(kDefaultShared, static_shared(*f))));
  return kOk;
}
API cuFuncSetCacheConfig(Function*, int) {
  COUNT;
  return kOk;
}
API cuFuncGetName(const char** name, Function* f) {
  ENTER;
  if (!d.functions.count(f)) return kInvalidHandle;
  *name = f->kernel->name;
  return kOk;
}
API cuFuncGetModule(Module** m, Function* f) {
  ENTER;
  if (!d.functions.count(f)) return kInvalidHandle;
  *m = f->module;
  return kOk;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Function* f, int threads,
                                                         size_t dynamic, unsigned) {
  ENTER;
  if (!d.functions.count(f) || threads <= 0) return kInvalidValue;
  const size_t shared = dynamic + static_shared(*f) + 1024;
  *blocks =
      int(std::min<size_t>({2048 / size_t(std::max(threads, 32)), (228u << 10) / shared, 32}));
  return kOk;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* f, int threads,
                                                size_t dynamic) {
  COUNT;
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, dynamic, 0);
}
API cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, Function* f, size_t (*)(int),
                                              size_t, int limit, unsigned) {
  ENTER;
  if (!d.functions.count(f)) return kInvalidValue;
  *block = limit > 0 && limit < 256 ? limit : 256;
  *grid = 2 * (2048 / *block);
  return kOk;
}
API cuOccupancyMaxPotentialBlockSize(int* grid, int* block, Function* f, size_t (*bytes)(int),
                                     size_t dynamic, int limit) {
  COUNT;
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, f, bytes, dynamic, limit, 0);
}
API cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, Function* f, int, int) {
  ENTER;
  if (!d.functions.count(f)) return kInvalidValue;
  *bytes = kMaxDynamicShared - static_shared(*f);
  return kOk;
}
API cuLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned dynamic, void* stream, void** parameters, void** extra) {
  COUNT;
  return launch(f, {gx, gy, gz}, {bx, by, bz}, dynamic, stream, parameters, extra);
}
struct LaunchConfig {
  unsigned gx, gy, gz, bx, by, bz, dynamic;
  void* stream;
  void* attributes;
  unsigned num_attributes;
};
// Attributes (clusters, priorities, programmatic launches) have no effect.
API cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** parameters, void** extra) {
  COUNT;
  return launch(f, {c->gx, c->gy, c->gz}, {c->bx, c->by, c->bz}, c->dynamic, c->stream, parameters,
                extra);
}
// Blocks run one after another: a grid-wide barrier cannot be run.
API cuLaunchCooperativeKernel(Function*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void*, void**) {
  COUNT;
  return kNotSupported;
}
