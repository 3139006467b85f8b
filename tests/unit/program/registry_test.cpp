#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "programs.hpp"

namespace weft {
namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("weft-registry-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

constexpr const char* kStar =
    "broadcast star\nstep { if r == root { for k in 1..P send (r+k)%P out[0] } else recv root out[0] }\n";

std::string refusal(const std::string& path) {
  const auto programs = load_user_programs(path, 4);
  return programs.ok() ? "" : programs.status().message();
}

TEST(Registry, HasEachProgramOnceAndEveryCollective) {
  std::set<std::string> names;
  std::set<Collective> collectives;
  for (const ProgramPtr& program : builtin_programs()) {
    EXPECT_TRUE(names.insert(full_name(*program)).second) << full_name(*program);
    EXPECT_EQ(program->file(), std::string(name_of(program->collective())) + "-" + program->name() + ".algo");
    collectives.insert(program->collective());
  }
  EXPECT_EQ(collectives.size(), static_cast<size_t>(kCollectives - 1));
  for (const Collective collective : collectives) {
    const bool any = std::any_of(builtin_programs().begin(), builtin_programs().end(), [&](const ProgramPtr& program) {
      return program->collective() == collective && program->supports(7);
    });
    EXPECT_TRUE(any) << name_of(collective) << " has no program for 7 ranks";
  }
}

TEST(Registry, LoadsAndVerifiesUsersFiles) {
  const Folder folder;
  folder.write("star.algo", kStar);
  folder.write("notes.txt", "not a program");
  const auto programs = load_user_programs(folder.path() + "::", 20);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  ASSERT_EQ(programs.value().size(), 1U);
  EXPECT_EQ(programs.value()[0]->name(), "star");
  EXPECT_TRUE(load_user_programs("", 4).value().empty());
}

TEST(Registry, RefusesWithFileLineAndReason) {
  const Folder folder;
  EXPECT_NE(refusal(folder.path() + "/absent.algo").find("absent.algo"), std::string::npos);
  const std::string wrong = folder.write("wrong.algo", "allreduce mine\nsend 1 out[");
  EXPECT_NE(refusal(wrong).find("wrong.algo:2:12: expected a value"), std::string::npos) << refusal(wrong);
  const std::string lossy = folder.write("lossy.algo", "allreduce mine\nstep { }\n");
  EXPECT_NE(refusal(lossy).find("lossy.algo: allreduce mine for 2 ranks, out of place: rank 0: the result"),
            std::string::npos)
      << refusal(lossy);
  const std::string taken = folder.write("taken.algo", "allreduce ring\nstep { }\n");
  EXPECT_NE(refusal(taken).find("there already is allreduce ring, from allreduce-ring.algo"), std::string::npos);
  const std::string one = folder.write("one.algo", kStar), two = folder.write("two.algo", kStar);
  EXPECT_NE(refusal(one + ":" + two).find("there already is broadcast star"), std::string::npos);
}

}  // namespace
}  // namespace weft
