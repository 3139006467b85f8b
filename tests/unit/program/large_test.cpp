// Every program for many ranks, by one root: seconds of work, and minutes under a sanitizer.
#include "programs.hpp"
#include "verify/verify.hpp"

namespace weft {
namespace {

TEST(Verify, EveryProgramIsRightForManyRanks) {
  for (const ProgramPtr& program : builtin_programs()) {
    for (const int ranks : {127, 128, 1024}) {
      const Status status = verify(*program, ranks, {.roots = {ranks / 3}});
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

}  // namespace
}  // namespace weft
