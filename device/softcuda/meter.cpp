// meter.cpp - puts the accesses of lanes together into those of warps and counts (meter.h);
// meter_report.cpp writes the totals.
#include "meter.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "driver_state.h"
#include "emulator_state.h"
#include "meter_report.h"

namespace softcuda {
namespace {

constexpr unsigned kSectorBytes = 32, kPageBytes = 4096, kBanks = 32, kWordBytes = 4;
// Groups of a warp that wait for lanes; beyond it they are counted as they are.
constexpr size_t kMostGroups = 1u << 20;

// What one warp does at once.
struct Group {
  unsigned site, nth, bytes, lanes;
  uint64_t epoch;
  uint64_t addresses[32];
};

// An instruction's executions by one lane since `epoch` began.
struct Executions {
  uint64_t epoch = 0;
  unsigned count = 0;
};

struct WarpMeter {
  std::vector<Group> groups;
  std::unordered_multimap<uint64_t, unsigned> places;
  // By lane: barriers and collectives so far, and the group that is likely the next one.
  uint64_t epochs[32] = {};
  unsigned next[32] = {};
  unsigned alive = 0;
  uint64_t newest = 0;  // epoch of a group
};

struct Page {
  uint32_t read[kPageBytes / kSectorBytes] = {}, written[kPageBytes / kSectorBytes] = {};
};

struct Range {
  uint64_t begin, end;
};

uint64_t key_of(unsigned site, uint64_t epoch, unsigned nth) {
  return (site * 0x9E3779B97F4A7C15ull ^ epoch) * 0xBF58476D1CE4E5B9ull + nth;
}

// Wavefronts: of each phase the bank with most distinct words decides. Accesses of 8 and 16 bytes
// go in halves and quarters of the warp. Atomics of one word go one after another.
void count_banks(const Group& g, SiteTotals& site) {
  const unsigned words = std::max(1u, g.bytes / kWordBytes), phase = 32 / words;
  for (unsigned first = 0; first < 32; first += phase) {
    uint64_t seen[kBanks][32];
    unsigned used[kBanks] = {}, worst = 0;
    for (unsigned lane = first; lane < first + phase; lane++) {
      if (!(g.lanes >> lane & 1)) continue;
      for (unsigned w = 0; w < words; w++) {
        const uint64_t word = g.addresses[lane] / kWordBytes + w;
        const unsigned bank = word % kBanks;
        uint64_t* end = seen[bank] + used[bank];
        if (site.kind == kHostcudaAtomic || std::find(seen[bank], end, word) == end)
          seen[bank][used[bank]++] = word;
        worst = std::max(worst, used[bank]);
      }
    }
    site.wavefronts += worst;
    site.least_wavefronts += worst != 0;
    site.worst_ways = std::max<uint64_t>(site.worst_ways, worst);
  }
  site.shared_requests++;
}

}  // namespace

struct Meter::State {
  KernelTotals totals;
  const Grid* grid = nullptr;
  Range fixed = {0, 0}, dynamic = {0, 0};  // shared memory
  std::vector<Range> memory;               // of all devices and page-locked
  size_t last_range = 0;
  std::unordered_map<uint64_t, unsigned> sites;  // by instruction and space
  std::vector<std::vector<Executions>> executions;  // by thread and site
  WarpMeter warps[kWarps];
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
  uint64_t last_page = ~0ull;
  Page* page = nullptr;

  bool in_memory(uint64_t address);
  bool in_shared(uint64_t address) const {
    return (address >= fixed.begin && address < fixed.end) ||
           (address >= dynamic.begin && address < dynamic.end);
  }
  unsigned site_of(const void* instruction, Space space, int kind, unsigned bytes);
  void mark(uint64_t sector, uint32_t bytes, int kind);
  void count_sectors(const Group& g, SiteTotals& site);
  void flush(WarpMeter& warp);
  void add(const Fiber& lane, unsigned site, uint64_t address, unsigned bytes);
};

bool Meter::State::in_memory(uint64_t address) {
  if (memory.empty()) return false;
  const Range& last = memory[last_range];
  if (address >= last.begin && address < last.end) return true;
  auto after = std::upper_bound(memory.begin(), memory.end(), address,
                                [](uint64_t a, const Range& r) { return a < r.begin; });
  if (after == memory.begin() || address >= (--after)->end) return false;
  last_range = size_t(after - memory.begin());
  return true;
}

unsigned Meter::State::site_of(const void* instruction, Space space, int kind, unsigned bytes) {
  const uint64_t key = uint64_t(instruction) * 2 + (space == Space::kShared);
  const auto [at, is_new] = sites.try_emplace(key, unsigned(totals.sites.size()));
  if (is_new) totals.sites.push_back({instruction, kind, bytes, space});
  return at->second;
}

void Meter::State::mark(uint64_t sector, uint32_t bytes, int kind) {
  constexpr unsigned kSectors = kPageBytes / kSectorBytes;
  if (sector / kSectors != last_page) {
    last_page = sector / kSectors;
    std::unique_ptr<Page>& at = pages[last_page];
    if (!at) at = std::make_unique<Page>();
    page = at.get();
  }
  if (kind != kHostcudaWrite) page->read[sector % kSectors] |= bytes;
  if (kind != kHostcudaRead) page->written[sector % kSectors] |= bytes;
}

void Meter::State::count_sectors(const Group& g, SiteTotals& site) {
  // A lane's bytes lie in two sectors at most.
  struct { uint64_t sector; uint32_t bytes; } touched[64];
  unsigned count = 0;
  for (unsigned lanes = g.lanes; lanes; lanes &= lanes - 1) {
    const uint64_t begin = g.addresses[std::countr_zero(lanes)], end = begin + g.bytes;
    for (uint64_t at = begin; at < end;) {
      const uint64_t sector = at / kSectorBytes;
      const uint64_t until = std::min<uint64_t>(end, (sector + 1) * kSectorBytes);
      const uint32_t bytes = uint32_t(((1ull << (until - at)) - 1) << at % kSectorBytes);
      unsigned i = count;
      while (i && touched[i - 1].sector != sector) i--;
      if (i) {
        touched[i - 1].bytes |= bytes;
      } else {
        touched[count++] = {sector, bytes};
      }
      at = until;
    }
    site.asked_bytes += g.bytes;
  }
  unsigned used = 0;
  for (unsigned i = 0; i < count; i++) {
    used += unsigned(std::popcount(touched[i].bytes));
    mark(touched[i].sector, touched[i].bytes, site.kind);
  }
  site.used_bytes += used;
  site.sectors += count;
  if (count > 1) {
    site.spread_used_bytes += used;
    site.spread_sectors += count;
  }
  site.requests++;
}

void Meter::State::flush(WarpMeter& warp) {
  for (const Group& g : warp.groups) {
    SiteTotals& site = totals.sites[g.site];
    if (site.space == Space::kShared) {
      count_banks(g, site);
    } else {
      count_sectors(g, site);
    }
  }
  warp.groups.clear();
  warp.places.clear();
  std::fill(std::begin(warp.next), std::end(warp.next), 0u);
  warp.newest = 0;
}

// One access of a lane, at most 16 bytes, into the group of its warp.
void Meter::State::add(const Fiber& lane, unsigned site, uint64_t address, unsigned bytes) {
  WarpMeter& warp = warps[lane.linear >> 5];
  const uint64_t epoch = warp.epochs[lane.lane];
  std::vector<Executions>& all = executions[lane.linear];
  if (all.size() <= site) all.resize(site + 8);
  if (all[site].epoch != epoch + 1) all[site] = {epoch + 1, 0};
  const unsigned nth = all[site].count++;
  const auto fits = [&](const Group& g) {
    return g.site == site && g.epoch == epoch && g.nth == nth && g.bytes == bytes;
  };
  unsigned at = warp.next[lane.lane];
  if (at >= warp.groups.size() || !fits(warp.groups[at])) {
    const uint64_t key = key_of(site, epoch, nth);
    const auto [begin, end] = warp.places.equal_range(key);
    const auto found =
        std::find_if(begin, end, [&](const auto& p) { return fits(warp.groups[p.second]); });
    at = found == end ? unsigned(warp.groups.size()) : found->second;
    if (found == end) {
      warp.groups.push_back({site, nth, bytes, 0, epoch, {}});
      warp.places.emplace(key, at);
      warp.newest = std::max(warp.newest, epoch);
    }
  }
  warp.groups[at].lanes |= 1u << lane.lane;
  warp.groups[at].addresses[lane.lane] = address;
  warp.next[lane.lane] = at + 1;
  if (warp.groups.size() > kMostGroups) flush(warp);
}

bool is_metered() {
  static const bool metered = [] {
    const char* file = getenv("SOFTCUDA_METER");
    return file && *file;
  }();
  return metered;
}

Meter*& running_meter() {
  static thread_local Meter* meter = nullptr;
  return meter;
}

Meter::Meter(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<Meter> Meter::begin(const std::string& name) {
  if (!is_metered()) return nullptr;
  auto state = std::make_unique<State>();
  state->totals.name = name;
  state->totals.launches = 1;
  auto meter = std::unique_ptr<Meter>(new Meter(std::move(state)));
  running_meter() = meter.get();
  return meter;
}

Meter::~Meter() {
  running_meter() = nullptr;
  KernelTotals& totals = state_->totals;
  for (const auto& entry : state_->pages) {
    for (unsigned i = 0; i < kPageBytes / kSectorBytes; i++) {
      const uint32_t read = entry.second->read[i], written = entry.second->written[i];
      totals.read_sectors += read != 0;
      totals.written_sectors += written != 0;
      totals.read_bytes += unsigned(std::popcount(read));
      totals.written_bytes += unsigned(std::popcount(written));
    }
  }
  report(std::move(totals));
}

void Meter::begin_grid(const Grid& grid) {
  State& s = *state_;
  s.grid = &grid;
  s.totals.blocks = size_t(grid.blocks.x) * grid.blocks.y * grid.blocks.z;
  const unsigned threads = grid.threads.x * grid.threads.y * grid.threads.z;
  s.totals.threads = threads;
  s.executions.resize(threads);
  s.fixed = {uint64_t(grid.module->shared_begin), uint64_t(grid.module->shared_end)};
  Hold hold(driver().lock);
  for (const auto& [address, allocation] : driver().allocations)
    s.memory.push_back({address, address + allocation.bytes});
}

void Meter::begin_block(const char* dynamic) {
  State& s = *state_;
  end_grid();
  s.dynamic = {uint64_t(dynamic), uint64_t(dynamic) + (dynamic ? s.grid->dynamic_bytes : 0)};
  for (unsigned thread = 0; thread < s.totals.threads; thread++) {
    WarpMeter& warp = s.warps[thread >> 5];
    warp.alive |= 1u << (thread & 31);
    // Later than whatever the thread of the block before has seen.
    warp.epochs[thread & 31] = ((warp.epochs[thread & 31] >> 32) + 1) << 32;
  }
}

// Note: a barrier of the block brings lanes together again that differ in their collectives.
void Meter::sync(const Fiber& lane, bool of_block) {
  WarpMeter& warp = state_->warps[lane.linear >> 5];
  uint64_t& epoch = warp.epochs[lane.lane];
  epoch = of_block ? ((epoch >> 32) + 1) << 32 : epoch + 1;
  if (warp.groups.empty()) return;
  for (unsigned lanes = warp.alive; lanes; lanes &= lanes - 1)
    if (warp.epochs[std::countr_zero(lanes)] <= warp.newest) return;
  state_->flush(warp);
}

void Meter::end_lane(const Fiber& lane) {
  state_->warps[lane.linear >> 5].alive &= ~(1u << lane.lane);
}

void Meter::end_grid() {
  for (WarpMeter& warp : state_->warps) state_->flush(warp);
}

void Meter::access(const Fiber& lane, const void* instruction, uint64_t address, unsigned bytes,
                   int kind) {
  State& s = *state_;
  const bool shared = s.in_shared(address);
  if (!shared && !s.in_memory(address)) return;
  // Structures are moved in the widest pieces that they are aligned to.
  for (unsigned done = 0; done < bytes;) {
    unsigned piece = 16;
    while ((address + done) % piece || piece > bytes - done) piece /= 2;
    // An access of its own width, wherever it lies.
    if (std::has_single_bit(bytes) && bytes <= 16) piece = bytes;
    const Space space = shared ? Space::kShared : Space::kGlobal;
    s.add(lane, s.site_of(instruction, space, kind, piece), address + done, piece);
    done += piece;
  }
}

void Meter::note(size_t bytes, bool written) {
  KernelTotals& t = state_->totals;
  (written ? t.written_bytes : t.read_bytes) += bytes;
  (written ? t.written_sectors : t.read_sectors) += (bytes + kSectorBytes - 1) / kSectorBytes;
}

void Meter::note_flops(uint64_t flops) { state_->totals.flops += flops; }

void meter_access(const void* instruction, unsigned long address, unsigned bytes, int kind) {
  const Fiber& lane = *reinterpret_cast<const Fiber*>(
      hostcuda_record_of(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))));
  const BlockState& block = *static_cast<const BlockState*>(lane.block);
  const uint64_t stacks = reinterpret_cast<uint64_t>(block.stacks);
  const uint64_t state = reinterpret_cast<uint64_t>(&block);
  if (!block.meter || address - stacks < kStacksBytes || address - state < sizeof block) return;
  block.meter->access(lane, instruction, address, bytes, kind);
}

}  // namespace softcuda
