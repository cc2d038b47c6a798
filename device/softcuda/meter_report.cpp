// meter_report.cpp - a line of JSON for each kernel, written when the process ends.
#include "meter_report.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "hostcuda_abi.h"

namespace softcuda {
namespace {

struct Kernel {
  KernelTotals totals;
  std::map<std::pair<const void*, Space>, SiteTotals> sites;
};
struct Registry {
  std::mutex lock;
  std::map<std::string, Kernel> kernels;
};
Registry& registry() {
  static Registry* r = new Registry;  // outlives every static destructor
  return *r;
}

// Functions and lines of an instruction, the innermost first, as addr2line finds them.
std::string place_of(const void* instruction) {
  Dl_info info;
  if (!dladdr(instruction, &info) || !info.dli_fname) return "";
  char command[512];
  // The address is that of a return: the call lies before it.
  const size_t at = size_t(static_cast<const char*>(instruction) -
                           static_cast<const char*>(info.dli_fbase)) - 1;
  snprintf(command, sizeof command, "addr2line -i -f -s -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
           at);
  FILE* out = popen(command, "r");
  if (!out) return "";
  std::string text, place;
  for (int c; (c = fgetc(out)) != EOF;) text += char(c);
  pclose(out);
  // Pairs of lines: a function, and its file with the line.
  for (size_t begin = 0; begin < text.size();) {
    const size_t name = text.find('\n', begin), line = text.find('\n', name + 1);
    if (name == std::string::npos || line == std::string::npos) break;
    const std::string where = text.substr(name + 1, line - name - 1);
    const std::string number = where.substr(where.rfind(':') + 1);
    place += (place.empty() ? "" : " < ") + text.substr(begin, name - begin) + ":" +
             number.substr(0, number.find(' '));
    begin = line + 1;
  }
  std::erase_if(place, [](char c) { return c == '"' || c == '\\'; });
  return place;
}

using Count = unsigned long long;

void write_site(FILE* out, const SiteTotals& s) {
  static const char* const kinds[] = {"read", "write", "atomic"};
  fprintf(out, "{\"place\":\"%s\",\"kind\":\"%s\",\"bytes\":%u,", place_of(s.instruction).c_str(),
          kinds[s.kind], s.bytes);
  if (s.space == Space::kGlobal) {
    fprintf(out,
            "\"requests\":%llu,\"asked_bytes\":%llu,\"used_bytes\":%llu,\"sectors\":%llu,"
            "\"spread_used_bytes\":%llu,\"spread_sectors\":%llu}",
            Count(s.requests), Count(s.asked_bytes), Count(s.used_bytes), Count(s.sectors),
            Count(s.spread_used_bytes), Count(s.spread_sectors));
  } else {
    fprintf(out,
            "\"shared_requests\":%llu,\"wavefronts\":%llu,\"least_wavefronts\":%llu,"
            "\"worst_ways\":%llu}",
            Count(s.shared_requests), Count(s.wavefronts), Count(s.least_wavefronts),
            Count(s.worst_ways));
  }
}

void write_kernel(FILE* out, const Kernel& kernel) {
  const KernelTotals& t = kernel.totals;
  fprintf(out,
          "{\"kernel\":\"%s\",\"launches\":%llu,\"blocks\":%llu,\"threads\":%llu,"
          "\"read_sectors\":%llu,\"read_bytes\":%llu,\"written_sectors\":%llu,"
          "\"written_bytes\":%llu,\"flops\":%llu,\"sites\":[",
          t.name.c_str(), Count(t.launches), Count(t.blocks), Count(t.threads),
          Count(t.read_sectors), Count(t.read_bytes), Count(t.written_sectors),
          Count(t.written_bytes), Count(t.flops));
  const char* separator = "";
  for (const auto& entry : kernel.sites) {
    fputs(separator, out);
    separator = ",";
    write_site(out, entry.second);
  }
  fputs("]}\n", out);
}

void write_all() {
  FILE* out = fopen(getenv("SOFTCUDA_METER"), "w");
  if (!out) return;
  std::lock_guard hold(registry().lock);
  for (const auto& entry : registry().kernels) write_kernel(out, entry.second);
  fclose(out);
}

}  // namespace

void report(KernelTotals launch) {
  std::lock_guard hold(registry().lock);
  // Note: not before the first kernel, whose module is then kept until after this has run.
  static bool written = false;
  if (!written && !launch.sites.empty()) written = atexit(write_all) == 0;
  Kernel& kernel = registry().kernels[launch.name];
  KernelTotals& t = kernel.totals;
  t.name = launch.name;
  t.launches += launch.launches;
  t.blocks += launch.blocks;
  t.threads = std::max(t.threads, launch.threads);
  t.read_sectors += launch.read_sectors;
  t.read_bytes += launch.read_bytes;
  t.written_sectors += launch.written_sectors;
  t.written_bytes += launch.written_bytes;
  t.flops += launch.flops;
  for (const SiteTotals& s : launch.sites) {
    const auto [at, is_new] = kernel.sites.try_emplace({s.instruction, s.space}, s);
    if (is_new) continue;
    SiteTotals& sum = at->second;
    sum.requests += s.requests;
    sum.asked_bytes += s.asked_bytes;
    sum.used_bytes += s.used_bytes;
    sum.sectors += s.sectors;
    sum.spread_used_bytes += s.spread_used_bytes;
    sum.spread_sectors += s.spread_sectors;
    sum.shared_requests += s.shared_requests;
    sum.wavefronts += s.wavefronts;
    sum.least_wavefronts += s.least_wavefronts;
    sum.worst_ways = std::max(sum.worst_ways, s.worst_ways);
  }
}

}  // namespace softcuda
