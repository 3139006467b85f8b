#include "common/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

namespace weft::perf {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes after a result that nobody may write.
constexpr size_t kGuard = 64;
constexpr size_t kPage = 4096;
constexpr size_t kLargestElement = 8;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

RankBuffer::RankBuffer(weftComm_t comm, size_t bytes, int registration) : comm_(comm), registration_(registration) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* memory = nullptr;
  if (registration == 2)
    check(weftMemAlloc(&memory, bytes), "weftMemAlloc");
  else if ((memory = std::aligned_alloc(kPage, bytes)) == nullptr)
    throw std::bad_alloc();
  data_ = static_cast<unsigned char*>(memory);
  std::memset(data_, 0, bytes);  // the rank's own thread touches its pages first
  if (registration == 1) check(weftCommRegister(comm, data_, bytes, &handle_), "weftCommRegister", comm);
  if (registration == 2)
    check(weftCommWindowRegister(comm, data_, bytes, &window_, WEFT_WIN_DEFAULT), "weftCommWindowRegister", comm);
}

RankBuffer::~RankBuffer() {
  if (handle_ != nullptr) weftCommDeregister(comm_, handle_);
  if (window_ != nullptr) weftCommWindowDeregister(comm_, window_);
  if (registration_ == 2)
    weftMemFree(data_);
  else
    std::free(data_);
}

Bench::Bench(const Program& program, const Options& options, Session& session, int local_rank, Member member,
             Report* report)
    : program_(program),
      options_(options),
      session_(session),
      local_rank_(local_rank),
      member_(member),
      report_(report),
      progress_(report != nullptr) {
  size_t bytes = options.max_bytes + kGuard + static_cast<size_t>(options.unalign) * kLargestElement;
  send_ = std::make_unique<RankBuffer>(member.group, bytes, options.registration);
  recv_ = std::make_unique<RankBuffer>(member.group, bytes, options.registration);
  if (options.async) stream_.emplace();
}

Totals Bench::run() {
  std::vector<ReductionInfo> reductions = program_.reduces ? options_.reductions : std::vector{kNoReduction};
  int first = !program_.rooted ? -1 : std::max(options_.root, 0);
  int last = !program_.rooted ? -1 : options_.root == -1 ? member_.group_size - 1 : options_.root;
  for (const TypeInfo& type : options_.types)
    for (const ReductionInfo& reduction : reductions)
      for (int root = first; root <= last; ++root) sweep({type, reduction, root});
  return totals_;
}

Bench::Layout Bench::layout(const Test& test, size_t size) const {
  Layout l;
  l.sizes = program_.sizes(size / test.type.bytes, test.type.bytes, member_.group_size);
  l.bytes = std::max(l.sizes.send, l.sizes.recv) * test.type.bytes;
  return l;
}

void Bench::sweep(const Test& test) {
  op_ = test.reduction.op;
  uint64_t scalar = Pattern::scalar(test.type, member_.group_rank);
  if (op_ == weftNumOps)
    check(weftRedOpCreatePreMulSum(&op_, &scalar, test.type.type, weftScalarHostImmediate, member_.group),
          "weftRedOpCreatePreMulSum", member_.group);
  barrier();
  // Warm-up in powers of two: connections, plans and caches of all sizes.
  for (size_t size = options_.min_bytes; size <= options_.max_bytes; size = std::max(size * 2, test.type.bytes)) {
    progress_.at(fmt::format("warming up, {} bytes", size));
    session_.watchdog().start(local_rank_);
    for (int i = 0; i < options_.warmup_iters; ++i) start(test, layout(test, size), false, static_cast<size_t>(i));
    complete();
    session_.watchdog().stop(local_rank_);
  }
  for (int cycle = 0; options_.run_cycles == 0 || cycle < options_.run_cycles; ++cycle) {
    for (std::optional<size_t> size = options_.min_bytes; size; size = next_size(options_, *size, test.type.bytes)) {
      Layout l = layout(test, *size);
      progress_.at(fmt::format("{} bytes, {} {}", l.bytes, test.type.name, test.reduction.name));
      Row row{l.bytes, l.sizes.param, test.type.name, test.reduction.name, test.root, {}, {}};
      row.out_of_place = measure(test, l, false);
      row.in_place = measure(test, l, true);
      progress_.clear();
      if (report_ != nullptr) report_->row(row);
    }
    if (report_ != nullptr && options_.run_cycles == 0) report_->save();
  }
  if (test.reduction.op == weftNumOps) check(weftRedOpDestroy(op_, member_.group), "weftRedOpDestroy", member_.group);
}

Measurement Bench::measure(const Test& test, const Layout& layout, bool in_place) {
  session_.watchdog().start(local_rank_);
  Measurement m;
  double seconds = time(test, layout, in_place, m.iterations);
  int ranks = member_.group_size;
  size_t moved = program_.moved != nullptr ? program_.moved(layout.bytes, ranks) : layout.bytes;
  m.seconds = average(seconds);
  m.alg_bw = static_cast<double>(moved) / 1e9 / std::max(m.seconds, 1e-9);
  // Between one rank and itself there is no bus.
  m.bus_bw = ranks == 1 ? 0 : m.alg_bw * program_.bus_factor(ranks);
  totals_.bus_bw += m.bus_bw;
  ++totals_.measured;
  bool checked = options_.check > 0 && !(in_place && program_.in_place == InPlace::kNone);
  if (checked) {
    uint64_t wrong = check_results(test, layout, in_place);
    if (!in_place || program_.in_place == InPlace::kChecked) m.wrong = wrong;
  }
  session_.watchdog().stop(local_rank_);
  return m;
}

double Bench::time(const Test& test, const Layout& layout, bool in_place, std::vector<double>& iterations) {
  start(test, layout, in_place, 0);
  complete();
  stall();
  barrier();
  auto aggregated = static_cast<size_t>(options_.agg_iters);
  double calls = static_cast<double>(options_.iters) * options_.agg_iters;
  double without_barriers = 0;
  bool outer_barrier = options_.blocking == Blocking::kOuterBarrier;
  Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < static_cast<size_t>(options_.iters); ++i) {
    Clock::time_point iteration_begin = outer_barrier || options_.per_iter_timing ? Clock::now() : begin;
    if (aggregated > 1) check(weftGroupStart(), "weftGroupStart");
    for (size_t j = 0; j < aggregated; ++j) start(test, layout, in_place, i * aggregated + j);
    if (aggregated > 1) check(weftGroupEnd(), "weftGroupEnd", member_.group);
    if (outer_barrier || options_.per_iter_timing || (aggregated > 1 && options_.blocking != Blocking::kNone))
      complete();
    if (options_.per_iter_timing) iterations.push_back(seconds_since(iteration_begin) / options_.agg_iters);
    if (outer_barrier) without_barriers += seconds_since(iteration_begin);
    if (outer_barrier || (aggregated > 1 && options_.blocking == Blocking::kBarrier)) barrier();
  }
  double issued = seconds_since(begin);
  complete();
  double elapsed = outer_barrier ? without_barriers : options_.report_cputime ? issued : seconds_since(begin);
  if (options_.per_iter_timing) iterations = slowest(std::move(iterations));
  return elapsed / calls;
}

uint64_t Bench::check_results(const Test& test, const Layout& layout, bool in_place) {
  uint64_t counts[2] = {0, 0};
  for (int round = 0; round < options_.check && counts[0] == 0; ++round) {
    size_t limit = std::max(layout.sizes.send, layout.sizes.recv);
    Pattern pattern(test.type, test.reduction.reduction, member_.group_size, ++seed_, limit);
    prepare_data(pattern, test, layout, in_place);
    barrier();
    start(test, layout, in_place, 0);
    complete();
    counts[0] = wrong_elements(pattern, test, layout, in_place);
    counts[1] = counts[0] > 0;
    check(weftAllReduce(counts, counts, 2, weftUint64, weftSum, member_.world, nullptr), "weftAllReduce",
          member_.world);
  }
  totals_.out_of_bounds += static_cast<int>(counts[1]);
  return counts[0];
}

unsigned char* Bench::send_at(const Layout& layout, size_t element, bool in_place) const {
  size_t shift = static_cast<size_t>(options_.unalign) * element;
  if (!runs_in_place(in_place)) return send_->data() + shift;
  return recv_->data() + shift + layout.sizes.send_in_place * static_cast<size_t>(member_.group_rank) * element;
}

unsigned char* Bench::recv_at(const Layout& layout, size_t element, bool in_place) const {
  size_t shift = static_cast<size_t>(options_.unalign) * element;
  size_t offset = runs_in_place(in_place) ? layout.sizes.recv_in_place * static_cast<size_t>(member_.group_rank) : 0;
  return recv_->data() + shift + offset * element;
}

void Bench::prepare_data(Pattern& pattern, const Test& test, const Layout& layout, bool in_place) {
  size_t element = test.type.bytes;
  unsigned char* start = recv_->data() + static_cast<size_t>(options_.unalign) * element;
  std::memset(start, kSentinel, layout.bytes + kGuard);
  pattern.fill(send_at(layout, element, in_place), member_.group_rank, 0, layout.sizes.send);
}

// Result, what must not be touched (gaps, the guard, the input out of place), each element that is wrong counted once.
uint64_t Bench::wrong_elements(Pattern& pattern, const Test& test, const Layout& layout, bool in_place) {
  size_t element = test.type.bytes;
  Place place{member_.group_rank, member_.group_size, test.root, layout.sizes.param, element, in_place};
  std::vector<Piece> pieces = program_.expected(place);
  if (options_.plant_corruption == member_.world_rank) damage(pieces, element, in_place, layout);

  const unsigned char* recv = recv_at(layout, element, in_place);
  uint64_t wrong = 0;
  size_t reached = 0;
  for (const Piece& piece : pieces) {
    if (!in_place && piece.at > reached)
      wrong += count_touched(recv + reached * element, (piece.at - reached) * element, element);
    wrong += pattern.count_wrong(recv + piece.at * element, piece.source, piece.from, piece.count);
    reached = std::max(reached, piece.at + piece.count);
  }
  const unsigned char* end = recv_->data() + static_cast<size_t>(options_.unalign) * element + layout.bytes;
  if (in_place) return wrong + count_touched(end, kGuard, element);
  const unsigned char* tail = recv + reached * element;
  wrong += count_touched(tail, static_cast<size_t>(end + kGuard - tail), element);
  return wrong + pattern.count_wrong(send_at(layout, element, false), member_.group_rank, 0, layout.sizes.send);
}

// --plant-corruption: one byte of the result, so that tests can see that the check is no formality.
void Bench::damage(const std::vector<Piece>& pieces, size_t element, bool in_place, const Layout& layout) {
  if (layout.bytes == 0) return;
  auto filled = std::find_if(pieces.begin(), pieces.end(), [](const Piece& p) { return p.count > 0; });
  size_t at = filled == pieces.end() ? 0 : filled->at;
  recv_at(layout, element, in_place)[at * element] ^= 0x40;
}

Call Bench::call(const Test& test, const Layout& layout, bool in_place, size_t iteration) const {
  // Each iteration uses the next part of the buffers, so that small sizes are not measured in one hot cache line only.
  size_t places = layout.bytes > 0 ? options_.max_bytes / layout.bytes : 1;
  size_t shift = layout.bytes * (iteration % places);
  size_t element = test.type.bytes;
  return {.send = send_at(layout, element, in_place) + shift,
          .recv = recv_at(layout, element, in_place) + shift,
          .count = layout.sizes.param,
          .element = element,
          .type = test.type.type,
          .op = op_,
          .root = test.root,
          .rank = member_.group_rank,
          .ranks = member_.group_size,
          .comm = member_.group,
          .stream = stream_ ? stream_->raw() : nullptr};
}

void Bench::start(const Test& test, const Layout& layout, bool in_place, size_t iteration) {
  check(program_.run(call(test, layout, in_place, iteration)), program_.name, member_.group);
  bool grouped = options_.agg_iters > 1;
  if (grouped || options_.blocking == Blocking::kNone) return;
  complete();
  if (options_.blocking == Blocking::kBarrier) barrier();
}

void Bench::complete() {
  if (stream_) check(weftStreamSynchronize(stream_->raw()), "weftStreamSynchronize", member_.group);
}

void Bench::barrier() { check(weftBarrier(member_.world, nullptr), "weftBarrier", member_.world); }

double Bench::average(double seconds) {
  weftComm_t world = member_.world;
  if (options_.average == Average::kRank0) {
    check(weftBroadcast(&seconds, &seconds, 1, weftFloat64, 0, world, nullptr), "weftBroadcast", world);
    return seconds;
  }
  weftRedOp_t op = options_.average == Average::kMean ? weftAvg : options_.average == Average::kMin ? weftMin : weftMax;
  check(weftAllReduce(&seconds, &seconds, 1, weftFloat64, op, world, nullptr), "weftAllReduce", world);
  return seconds;
}

std::vector<double> Bench::slowest(std::vector<double> seconds) {
  check(weftAllReduce(seconds.data(), seconds.data(), seconds.size(), weftFloat64, weftMax, member_.world, nullptr),
        "weftAllReduce", member_.world);
  return seconds;
}

// --plant-stall: this rank leaves the others waiting until -T ends the run.
void Bench::stall() {
  if (options_.plant_stall != member_.world_rank) return;
  for (int i = 0; i < 6000 && !session_.watchdog().fired(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

}  // namespace weft::perf
