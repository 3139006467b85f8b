// Programs: parsed .algo files, and the registry of those that are built in or found on WEFT_ALGO_PATH.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"
#include "status/status.hpp"
#include "topology/hierarchy.hpp"

namespace weft {

class Program {
 public:
  // Errors are weftInvalidArgument with "file:line: reason".
  static Result<std::shared_ptr<const Program>> parse(std::string_view text, const std::string& file);
  virtual ~Program() = default;

  virtual Collective collective() const = 0;
  virtual const std::string& name() const = 0;
  virtual const std::string& file() const = 0;
  virtual const std::string& text() const = 0;
  // What the program is for, by its own `requires` lines (a power of two, say); every program is for 1 rank.
  virtual bool supports(const Hierarchy& hierarchy) const = 0;
  bool supports(int ranks) const { return ranks > 0 && supports(Hierarchy::flat(ranks)); }
};
using ProgramPtr = std::shared_ptr<const Program>;

// In a fixed order.
const std::vector<ProgramPtr>& builtin_programs();
// Parses the files and, of directories, the *.algo files by name, of a colon-separated list.
Result<std::vector<ProgramPtr>> read_programs(const std::string& path);
// Those of WEFT_ALGO_PATH: read, and verified for 1..17 ranks and, up to 1024, for `ranks`. Refuses with file, line and
// reason; also where the collective has the name already.
Result<std::vector<ProgramPtr>> load_user_programs(const std::string& path, int ranks);
// Verifies them once more, for ranks in several levels of groups (up to 1024 ranks).
Status verify_user_programs(const std::vector<ProgramPtr>& programs, const Hierarchy& hierarchy);

struct ExpandOptions {
  int ranks = 1;
  int rank = 0;
  int root = 0;
  bool in_place = false;
  const Hierarchy* hierarchy = nullptr;  // of as many ranks; null: flat
};
// The plan of one rank. Time and size are those of that rank's own ops. Errors (an index out of range, say) are
// weftInvalidArgument with file, line, and the values of r and P.
Result<std::shared_ptr<const Plan>> expand(const Program& program, const ExpandOptions& options);

}  // namespace weft
