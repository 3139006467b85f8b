// An all-gather of a few bytes through files, for libraries that want their ranks introduced to each other. Rank and
// size come from weft-run, the folder from compare.py.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace compare {

class Introduction {
 public:
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& folder() const { return folder_; }

  // Begins a round; done() says when all have come.
  int begin(const void* mine, size_t bytes) {
    const std::string path = file(round_, rank_);
    std::ofstream(path + ".new", std::ios::binary).write(static_cast<const char*>(mine), static_cast<long>(bytes));
    std::filesystem::rename(path + ".new", path);
    return round_++;
  }
  bool done(int round, void* all, size_t bytes) const {
    for (int peer = 0; peer < ranks_; ++peer) {
      std::ifstream in(file(round, peer), std::ios::binary);
      if (!in || !in.read(static_cast<char*>(all) + static_cast<size_t>(peer) * bytes, static_cast<long>(bytes))) {
        return false;
      }
    }
    return true;
  }
  void all_gather(const void* mine, void* all, size_t bytes) {
    const int round = begin(mine, bytes);
    while (!done(round, all, bytes)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  static std::string variable(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr) {
      std::fprintf(stderr, "%s is not set: compare.py starts this program\n", name);
      std::exit(2);
    }
    return value;
  }
  std::string file(int round, int rank) const {
    return folder_ + "/" + std::to_string(round) + "." + std::to_string(rank);
  }

  const int rank_ = std::stoi(variable("WEFT_RANK")), ranks_ = std::stoi(variable("WEFT_WORLD_SIZE"));
  const std::string folder_ = variable("COMPARE_FOLDER");
  int round_ = 0;
};

}  // namespace compare
