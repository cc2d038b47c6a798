// nvrtc.cpp - libnvrtc.so.13 of the software device: the runtime compiler's interface on top of
// g++.
//
// A program's text, with the given headers, goes through `g++ -E`; `__global__` and
// `__launch_bounds__(..)` are then taken out of the preprocessed text and give the kernel table,
// and the rest is compiled to a shared object, whose bytes are what CUDA calls the cubin. Nothing
// is cached here.
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

extern char** environ;

// The headers for kernels travel inside the library.
#define EMBED(symbol, file)                                                                     \
  asm(".section .rodata\n.globl " #symbol "\n.hidden " #symbol "\n" #symbol ": .incbin \"" file \
      "\"\n.byte 0\n.previous\n");                                                              \
  extern "C" const char symbol[];
EMBED(softcuda_hostcuda_h, SOFTCUDA_SOURCE "/hostcuda.h")
EMBED(softcuda_hostcuda_abi_h, SOFTCUDA_SOURCE "/hostcuda_abi.h")
EMBED(softcuda_hostcuda_meter_h, SOFTCUDA_SOURCE "/hostcuda_meter.h")

namespace {

enum Result {
  kSuccess = 0,
  kOutOfMemory = 1,
  kCreation = 2,
  kInvalidInput = 3,
  kInvalidProgram = 4,
  kInvalidOption = 5,
  kCompilation = 6,
  kNoLowered = 10,
  kInternal = 11
};

struct Program {
  std::string name, text, log, cubin;
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<std::string> names;
};
struct Kernel {
  std::string name, bounds;
};

std::mutex lock;
std::set<Program*> programs;

bool known(Program* p) {
  std::lock_guard hold(lock);
  return programs.count(p) != 0;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs a command with stdout and stderr in the file `log`; its exit status.
int run(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  // The sanitizers' preloaded libraries are for the program, not for its compiler.
  std::vector<char*> env;
  for (char** e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0) env.push_back(*e);
  env.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, argv[0], &files, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&files);
  if (failed) {
    write_file(log, "softcuda: cannot start " + words[0] + ": " + strerror(failed) + "\n");
    return 127;
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

bool is_word(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The text from `at`, which is at a "(", to the matching ")"; moves `at` past it.
std::string parenthesis(const std::string& text, size_t& at) {
  const size_t begin = at + 1;
  for (int depth = 0; at < text.size(); at++) {
    if (text[at] == '(') depth++;
    if (text[at] == ')' && --depth == 0) break;
  }
  at++;
  return text.substr(begin, at - begin - 1);
}

// Blanks `__global__` and `__launch_bounds__(..)`; returns the kernels they stand before.
std::vector<Kernel> take_kernels(std::string& text) {
  std::vector<Kernel> kernels;
  const std::string global = "__global__", bounds = "__launch_bounds__";
  bool pending = false;
  std::string limit;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    // A literal (a digit separator ends at the next quote: there is none in kernels).
    if (c == '"' || c == '\'') {
      size_t end = at + 1;
      while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
      at = end + 1;
      continue;
    }
    if (!is_word(c)) {
      if (pending && c == ';') pending = false;  // only declared
      at++;
      continue;
    }
    size_t end = at;
    while (end < text.size() && is_word(text[end])) end++;
    const std::string word = text.substr(at, end - at);
    size_t next = end;
    while (next < text.size() && isspace(static_cast<unsigned char>(text[next]))) next++;
    if (word == global) {
      pending = true;
      limit.clear();
      text.replace(at, global.size(), global.size(), ' ');
    } else if (word == bounds && next < text.size() && text[next] == '(') {
      size_t close = next;
      limit = parenthesis(text, close);
      for (size_t i = at; i < close; i++)
        if (text[i] != '\n') text[i] = ' ';
      end = close;
    } else if (word == "__attribute__" && next < text.size() && text[next] == '(') {
      size_t close = next;
      parenthesis(text, close);
      end = close;
    } else if (pending && next < text.size() && text[next] == '(') {
      size_t close = next;
      parenthesis(text, close);
      while (close < text.size() && isspace(static_cast<unsigned char>(text[close]))) close++;
      if (close < text.size() && text[close] == '{') kernels.push_back({word, limit});
      pending = false;
    }
    at = end;
  }
  return kernels;
}

std::string table(const std::vector<Kernel>& kernels) {
  std::ostringstream out;
  out << "\n# 1 \"hostcuda table\"\n"
      << "namespace hostcuda { __attribute__((section(\".data.hostcuda\"))) const HostcudaRuntime* "
         "runtime; }\n"
      << "extern \"C\" __attribute__((visibility(\"hidden\"))) char __bss_start[], _end[];\n"
      << "static const HostcudaKernel hostcuda_kernels[] = {\n";
  for (const Kernel& k : kernels)
    out << "  {\"" << k.name << "\", &hostcuda::Thunk<&" << k.name << ">::run, hostcuda::Thunk<&"
        << k.name << ">::sizes, hostcuda::Thunk<&" << k.name << ">::count, "
        << (k.bounds.empty() ? "0" : "hostcuda::first(" + k.bounds + ")") << "},\n";
  out << "  {nullptr, nullptr, nullptr, 0, 0}};\n"
      << "extern \"C\" __attribute__((visibility(\"default\"))) const HostcudaModule "
         "hostcuda_module;\n"
      << "const HostcudaModule hostcuda_module = {kHostcudaVersion, hostcuda_kernels, "
      << kernels.size() << ", __bss_start, _end, &hostcuda::runtime};\n";
  return out.str();
}

bool has_fma() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool is_metered() {
  const char* file = getenv("SOFTCUDA_METER");
  return file && *file;
}

std::vector<std::string> compiler_flags() {
  // Unrolling pragmas are for the device; helpers of the prelude may be unused; ABI remarks on
  // vectors are not warnings.
  std::vector<std::string> flags = {"-std=c++20",
                                    "-O2",
                                    "-fPIC",
                                    "-ffp-contract=off",
                                    "-fno-math-errno",
                                    "-fno-exceptions",
                                    "-fno-rtti",
                                    "-fvisibility=hidden",
                                    "-Wall",
                                    "-Wextra",
                                    "-Wno-unknown-pragmas",
                                    "-Wno-unused-function",
                                    "-Wno-psabi",
                                    "-fno-strict-aliasing",
                                    "-pipe"};
  if (has_fma()) flags.insert(flags.end(), {"-mavx2", "-mfma", "-mf16c"});
#if defined(SOFTCUDA_ASAN)
  flags.insert(flags.end(),
               {"-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined",
                "-fno-omit-frame-pointer", "-fno-sanitize=vptr"});
#elif defined(SOFTCUDA_TSAN)
  flags.insert(flags.end(), {"-g1", "-fsanitize=thread", "-fno-omit-frame-pointer"});
#endif
  // Aggregates are kept whole, so that sixteen bytes are one access; the hooks take the place of
  // ThreadSanitizer's library, which -nodefaultlibs leaves out.
  if (is_metered())
    flags.insert(flags.end(), {"-DHOSTCUDA_METER", "-g", "-fsanitize=thread", "-fno-tree-sra",
                               "-Wno-deprecated-copy", "-nodefaultlibs",
                               "--param=tsan-instrument-func-entry-exit=0"});
  if (const char* more = getenv("SOFTCUDA_CXXFLAGS")) {
    std::istringstream words(more);
    for (std::string w; words >> w;) flags.push_back(w);
  }
  return flags;
}

// Which of NVRTC's options mean something to g++; the others (architecture, ptxas, line info) do
// not matter here.
bool take_options(int count, const char* const* options, std::vector<std::string>& flags) {
  for (int i = 0; i < count; i++) {
    const std::string o = options[i];
    const auto value = [&](const char* name) {
      return o.rfind(name, 0) == 0 ? o.substr(strlen(name)) : std::string();
    };
    if (o == "-D" || o == "-I" || o == "-U") {
      if (i + 1 >= count) return false;
      flags.push_back(o + options[++i]);
    } else if (o.rfind("-D", 0) == 0 || o.rfind("-U", 0) == 0 || o.rfind("-I", 0) == 0) {
      flags.push_back(o);
    } else if (!value("--define-macro=").empty()) {
      flags.push_back("-D" + value("--define-macro="));
    } else if (!value("--include-path=").empty()) {
      flags.push_back("-I" + value("--include-path="));
    }
  }
  return true;
}

Result compile_in(const std::string& folder, Program& program, int count,
                  const char* const* options) {
  for (const auto& [name, text] : program.headers) {
    for (size_t slash = name.find('/'); slash != std::string::npos;
         slash = name.find('/', slash + 1))
      mkdir((folder + "/" + name.substr(0, slash)).c_str(), 0700);
    write_file(folder + "/" + name, text);
  }
  write_file(folder + "/hostcuda.h", softcuda_hostcuda_h);
  write_file(folder + "/hostcuda_abi.h", softcuda_hostcuda_abi_h);
  write_file(folder + "/hostcuda_meter.h", softcuda_hostcuda_meter_h);
  // Everything of the program is local to its shared object: `__shared__` variables of templates,
  // too, are then plain statics.
  write_file(folder + "/program.cpp", "#include \"hostcuda.h\"\nnamespace {\n#line 1 \"" +
                                          program.name + "\"\n" + program.text + "\n}\n");
  const std::string log = folder + "/log";
  const char* chosen = getenv("SOFTCUDA_CXX");
  std::vector<std::string> base = {chosen && *chosen ? chosen : "g++"};
  for (std::string& f : compiler_flags()) base.push_back(std::move(f));

  std::vector<std::string> first = base;
  if (!take_options(count, options, first)) {
    program.log = "softcuda: an option lacks its value\n";
    return kInvalidOption;
  }
  first.insert(first.end(),
               {"-I" + folder, "-E", folder + "/program.cpp", "-o", folder + "/program.ii"});
  int status = run(first, log);
  if (status == 0) {
    std::string text = read_file(folder + "/program.ii");
    const std::vector<Kernel> kernels = take_kernels(text);
    write_file(folder + "/program.ii", text + table(kernels));
    std::vector<std::string> second = base;
    second.insert(second.end(),
                  {"-fpreprocessed", "-x", "c++-cpp-output", folder + "/program.ii", "-shared",
                   "-nostartfiles", "-Wl,-z,now", "-o", folder + "/program.so"});
    if (is_metered()) second.insert(second.end(), {"-lm", "-lc", "-lgcc"});
    status = run(second, log);
  }
  program.log = read_file(log);
  if (status != 0) return kCompilation;
  program.cubin = read_file(folder + "/program.so");
  return program.cubin.empty() ? kInternal : kSuccess;
}

Result compile(Program& program, int count, const char* const* options) {
  const char* base = getenv("TMPDIR");
  std::string folder = std::string(base && *base ? base : "/tmp") + "/softcuda-nvrtc-XXXXXX";
  if (!mkdtemp(folder.data())) return kInternal;
  const Result result = compile_in(folder, program, count, options);
  if (!getenv("SOFTCUDA_KEEP")) {
    run({"rm", "-rf", folder}, "/dev/null");
  } else {
    fprintf(stderr, "softcuda: %s was compiled in %s\n", program.name.c_str(), folder.c_str());
  }
  return result;
}

// The minor version stands for everything that decides what comes out, so that caches of compiled
// kernels are never stale.
int minor_version() {
  uint32_t hash = 2166136261u;
  const auto add = [&](const char* text) {
    for (; *text; text++) hash = (hash ^ static_cast<unsigned char>(*text)) * 16777619u;
  };
  add(softcuda_hostcuda_h);
  add(softcuda_hostcuda_abi_h);
  add(softcuda_hostcuda_meter_h);
  for (const std::string& f : compiler_flags()) add(f.c_str());
  add(SOFTCUDA_BUILD);
  return 1000 + int(hash % 1000000);
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = minor_version();
  return kSuccess;
}
API const char* nvrtcGetErrorString(int result) {
  static const char* const names[] = {"NVRTC_SUCCESS",
                                      "NVRTC_ERROR_OUT_OF_MEMORY",
                                      "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                      "NVRTC_ERROR_INVALID_INPUT",
                                      "NVRTC_ERROR_INVALID_PROGRAM",
                                      "NVRTC_ERROR_INVALID_OPTION",
                                      "NVRTC_ERROR_COMPILATION"};
  return result >= 0 && result <= 6 ? names[result] : "NVRTC_ERROR_INTERNAL_ERROR";
}
API int nvrtcGetNumSupportedArchs(int* count) {
  *count = 3;
  return kSuccess;
}
API int nvrtcGetSupportedArchs(int* archs) {
  archs[0] = 80, archs[1] = 90, archs[2] = 100;
  return kSuccess;
}
API int nvrtcCreateProgram(Program** out, const char* text, const char* name, int num_headers,
                           const char* const* headers, const char* const* names) {
  if (!out || !text || num_headers < 0) return kInvalidInput;
  Program* p = new Program{name && *name ? name : "default_program", text, {}, {}, {}, {}};
  for (int i = 0; i < num_headers; i++) p->headers.emplace_back(names[i], headers[i]);
  std::lock_guard hold(lock);
  programs.insert(p);
  *out = p;
  return kSuccess;
}
API int nvrtcDestroyProgram(Program** p) {
  if (!p || !known(*p)) return kInvalidProgram;
  std::lock_guard hold(lock);
  programs.erase(*p);
  delete *p;
  *p = nullptr;
  return kSuccess;
}
API int nvrtcCompileProgram(Program* p, int count, const char* const* options) {
  return known(p) ? compile(*p, count, options) : kInvalidProgram;
}
API int nvrtcGetProgramLogSize(Program* p, size_t* bytes) {
  return known(p) ? (*bytes = p->log.size() + 1, kSuccess) : kInvalidProgram;
}
API int nvrtcGetProgramLog(Program* p, char* out) {
  return known(p) ? (memcpy(out, p->log.c_str(), p->log.size() + 1), kSuccess) : kInvalidProgram;
}
API int nvrtcGetCUBINSize(Program* p, size_t* bytes) {
  return known(p) ? (*bytes = p->cubin.size(), kSuccess) : kInvalidProgram;
}
API int nvrtcGetCUBIN(Program* p, char* out) {
  return known(p) ? (memcpy(out, p->cubin.data(), p->cubin.size()), kSuccess) : kInvalidProgram;
}
API int nvrtcGetPTXSize(Program* p, size_t* bytes) { return nvrtcGetCUBINSize(p, bytes); }
API int nvrtcGetPTX(Program* p, char* out) { return nvrtcGetCUBIN(p, out); }
API int nvrtcAddNameExpression(Program* p, const char* name) {
  return known(p) ? (p->names.emplace_back(name), kSuccess) : kInvalidProgram;
}
// Kernels are extern "C": their names are what they are.
API int nvrtcGetLoweredName(Program* p, const char* name, const char** lowered) {
  if (!known(p)) return kInvalidProgram;
  for (const std::string& n : p->names)
    if (n == name) return *lowered = n.c_str(), kSuccess;
  return kNoLowered;
}
