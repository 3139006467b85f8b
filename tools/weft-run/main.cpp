// weft-run: starts a program as several ranks on this host.
#include <fmt/format.h>

#include <cstdio>

#include "job.hpp"

int main(int argc, char** argv) {
  const weft::run::Options options = weft::run::parse_options(argc, argv);
  auto directory = weft::run::TemporaryDirectory::create();
  if (!directory.ok()) {
    fmt::print(stderr, "weft-run: {}\n", directory.status().message());
    return 1;
  }
  weft::run::Job job(options, std::move(directory.value()));
  if (const weft::Status status = job.start(); !status.ok()) {
    fmt::print(stderr, "weft-run: {}\n", status.message());
    return job.exit_code().value_or(1);
  }
  return job.run();
}
