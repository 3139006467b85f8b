#pragma once

#include <string>
#include <utility>
#include <vector>

namespace weft::run {

struct Options {
  int ranks = 0;
  bool prefix = true;
  bool keep_going = false;
  bool bind_core = false;
  double timeout_s = 0;  // 0: none
  double grace_s = 5;
  std::string output;  // directory; empty: our own stdout and stderr
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> command;
};

// Exits with usage on a wrong option or on --help.
Options parse_options(int argc, char** argv);

}  // namespace weft::run
