// One rank's run: sizes, warm-up, timed calls, check.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/program.hpp"
#include "common/progress.hpp"
#include "common/report.hpp"
#include "common/session.hpp"

namespace weft::perf {

// A rank's buffer: private memory, or memory that the host's processes can map; registered or a window as -R says.
class RankBuffer {
 public:
  RankBuffer(weftComm_t comm, size_t bytes, int registration);
  ~RankBuffer();
  RankBuffer(const RankBuffer&) = delete;
  RankBuffer& operator=(const RankBuffer&) = delete;
  unsigned char* data() const { return data_; }

 private:
  weftComm_t comm_;
  int registration_;
  unsigned char* data_ = nullptr;
  void* handle_ = nullptr;
  weftWindow_t window_ = nullptr;
};

struct Totals {
  int out_of_bounds = 0;  // halves of rows, summed over the ranks that found wrong data
  double bus_bw = 0;
  size_t measured = 0;
};

class Bench {
 public:
  // report: null but on rank 0.
  Bench(const Program& program, const Options& options, Session& session, int local_rank, Member member,
        Report* report);

  // All types, reductions and roots, as often as -N says. Throws weft::Error.
  Totals run();

 private:
  struct Test {
    TypeInfo type;
    ReductionInfo reduction;
    int root;
  };
  struct Layout {
    Sizes sizes;
    size_t bytes;  // the size column
  };

  void sweep(const Test& test);
  Layout layout(const Test& test, size_t size) const;
  Measurement measure(const Test& test, const Layout& layout, bool in_place);
  double time(const Test& test, const Layout& layout, bool in_place, std::vector<double>& iterations);
  uint64_t check_results(const Test& test, const Layout& layout, bool in_place);
  uint64_t wrong_elements(Pattern& pattern, const Test& test, const Layout& layout, bool in_place);
  void prepare_data(Pattern& pattern, const Test& test, const Layout& layout, bool in_place);
  void damage(const std::vector<Piece>& pieces, size_t element, bool in_place, const Layout& layout);
  void start(const Test& test, const Layout& layout, bool in_place, size_t iteration);
  void complete();
  void barrier();
  void stall();
  Call call(const Test& test, const Layout& layout, bool in_place, size_t iteration) const;
  double average(double seconds);
  std::vector<double> slowest(std::vector<double> seconds);
  unsigned char* send_at(const Layout& layout, size_t element, bool in_place) const;
  unsigned char* recv_at(const Layout& layout, size_t element, bool in_place) const;
  bool runs_in_place(bool in_place) const { return in_place && program_.in_place != InPlace::kNone; }

  const Program& program_;
  const Options& options_;
  Session& session_;
  int local_rank_;
  Member member_;
  Report* report_;
  Progress progress_;
  std::optional<Stream> stream_;
  std::unique_ptr<RankBuffer> send_, recv_;
  weftRedOp_t op_ = weftSum;
  uint64_t seed_ = 0;
  Totals totals_;
};

}  // namespace weft::perf
