// meter_report.h - totals of metered kernels, and the file that they are written to.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "meter.h"

namespace softcuda {

// One instruction.
struct SiteTotals {
  const void* instruction;
  int kind;
  unsigned bytes;  // of a lane
  Space space;
  uint64_t requests = 0, asked_bytes = 0, used_bytes = 0, sectors = 0;
  // Of requests that touch more than one sector: no order of lanes betters the others.
  uint64_t spread_used_bytes = 0, spread_sectors = 0;
  uint64_t shared_requests = 0, wavefronts = 0, least_wavefronts = 0, worst_ways = 0;
};

struct KernelTotals {
  std::string name;
  uint64_t launches = 0, blocks = 0, threads = 0;
  // Distinct ones of each launch.
  uint64_t read_sectors = 0, read_bytes = 0, written_sectors = 0, written_bytes = 0;
  uint64_t flops = 0;  // of matrix products of libraries
  std::vector<SiteTotals> sites;
};

// Adds a launch to what is written when the process ends.
void report(KernelTotals launch);

}  // namespace softcuda
