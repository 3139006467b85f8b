// Random damage to the shipped texts: whatever comes of it, parsing, expanding and verifying end with a plan or an
// error.
#include <gtest/gtest.h>

#include <random>

#include "programs.hpp"
#include "verify/verify.hpp"

namespace weft {
namespace {

constexpr std::string_view kPieces[] = {
    "(",   ")",     "[",    "]",    "{",    "}",    "..",    "+:",   "%",     "/",         "<<",     "-",
    "!",   "?",     ":",    ",",    "for ", "in",   "out",   "r",    "P",     "step ",     "if ",    "else ",
    "let", "send ", "recv", "copy", " ",    "from", "0",     "1",    "9",     "4096",      "reduce", "\n",
    "#",   "work",  "down", "=",    "with", "root", "lane ", "\x80", "1<<40", "2147483648"};

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    for (size_t n = 1 + below(4); n > 0 && !text.empty(); --n) {
      const size_t at = below(text.size()), length = 1 + below(12);
      const std::string_view piece = kPieces[below(std::size(kPieces))];
      switch (below(5)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, piece);
          break;
        case 2:
          text.replace(at, std::min(length, text.size() - at), piece);
          break;
        case 3:
          text.insert(below(text.size()), text.substr(at, length));
          break;
        default:
          text[at] = static_cast<char>(below(256));
      }
    }
    return text;
  }
  size_t below(size_t bound) { return random_() % bound; }

 private:
  std::mt19937 random_;
};

TEST(Fuzz, DamagedProgramsNeverCrash) {
  Mutator mutator(20240607U + static_cast<uint32_t>(testing::UnitTest::GetInstance()->random_seed()));
  int parsed = 0, verified = 0;
  for (int round = 0; round < 60; ++round) {
    for (const ProgramPtr& original : builtin_programs()) {
      const auto program = Program::parse(mutator.mutate(original->text()), "fuzz");
      if (!program.ok()) {
        ASSERT_EQ(program.status().message().find("fuzz:"), 0U) << program.status().message();
        continue;
      }
      ++parsed;
      const int ranks = 2 + static_cast<int>(mutator.below(5));
      verified += static_cast<int>(verify(*program.value(), ranks, {.roots = {1}}).ok());
    }
  }
  EXPECT_GT(parsed, 50);
  EXPECT_GT(verified, 5);  // damage to comments, mostly
}

TEST(Fuzz, NoiseIsNoProgram) {
  Mutator mutator(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text = "allreduce x ";
    for (size_t n = mutator.below(40); n > 0; --n) {
      text += kPieces[mutator.below(std::size(kPieces))];
      if (mutator.below(2) == 0) text += ' ';
    }
    const auto program = Program::parse(text, "fuzz");
    if (program.ok()) static_cast<void>(expand(*program.value(), {3, 1, 0, false}).ok());
  }
}

}  // namespace
}  // namespace weft
