#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "program/embedded.hpp"
#include "program/program.hpp"
#include "verify/verify.hpp"

namespace weft {
namespace {

constexpr int kVerifiedRanks = 17;
constexpr int kMostVerifiedRanks = 1024;  // seconds of work, and more would be minutes
constexpr std::uintmax_t kMaxFileSize = 1 << 20;

Result<ProgramPtr> load(const std::filesystem::path& path) {
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (failed) return error(weftInvalidArgument, "{}: {}", path.string(), failed.message());
  if (size > kMaxFileSize) {
    return error(weftInvalidArgument, "{}: {} bytes are more than a program may have ({})", path.string(), size,
                 kMaxFileSize);
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return error(weftInvalidArgument, "{} cannot be read", path.string());
  return Program::parse(text, path.string());
}

// The files of one element of the path: itself, or the *.algo files of a directory, by name.
Result<std::vector<std::filesystem::path>> files_of(const std::filesystem::path& element) {
  std::error_code failed;
  if (!std::filesystem::is_directory(element, failed)) return std::vector<std::filesystem::path>{element};
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(element, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path().extension() == ".algo") files.push_back(entry->path());
  }
  if (failed) return error(weftInvalidArgument, "{}: {}", element.string(), failed.message());
  std::sort(files.begin(), files.end());
  return files;
}

Status accept(const ProgramPtr& program, int ranks, const std::vector<ProgramPtr>& accepted) {
  const auto same = [&](const ProgramPtr& other) {
    return other->collective() == program->collective() && other->name() == program->name();
  };
  for (const auto* programs : {&builtin_programs(), &accepted}) {
    if (const auto found = std::find_if(programs->begin(), programs->end(), same); found != programs->end()) {
      return error(weftInvalidArgument, "{}: there already is {} {}, from {}", program->file(),
                   name_of(program->collective()), program->name(), (*found)->file());
    }
  }
  for (int count = 1; count <= kVerifiedRanks; ++count) WEFT_RETURN_IF_ERROR(verify(*program, count));
  if (ranks <= kVerifiedRanks || ranks > kMostVerifiedRanks) return {};
  return verify(*program, ranks, {.roots = {ranks / 3}});
}

Status refused(const Status& why) { return error(why.code(), "WEFT_ALGO_PATH: {}", why.message()); }

}  // namespace

const std::vector<ProgramPtr>& builtin_programs() {
  static const std::vector<ProgramPtr> programs = [] {
    std::vector<ProgramPtr> parsed;
    for (const EmbeddedFile& embedded : embedded_programs()) {
      auto program = Program::parse(embedded.text, std::string(embedded.file));
      if (!program.ok()) throw std::logic_error(program.status().message());  // the tests parse every one of them
      parsed.push_back(*program);
    }
    return parsed;
  }();
  return programs;
}

Result<std::vector<ProgramPtr>> read_programs(const std::string& path) {
  std::vector<ProgramPtr> programs;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string element = path.substr(begin, end - begin);
    begin = end + 1;
    if (element.empty()) continue;
    auto files = files_of(element);
    if (!files.ok()) return files.status();
    for (const auto& file : *files) {
      auto program = load(file);
      if (!program.ok()) return program.status();
      programs.push_back(*program);
    }
  }
  return programs;
}

Status verify_user_programs(const std::vector<ProgramPtr>& programs, const Hierarchy& hierarchy) {
  const int ranks = hierarchy.ranks();
  if (hierarchy.levels() == 1 || ranks > kMostVerifiedRanks) return {};
  for (const ProgramPtr& program : programs) {
    const Status status = verify(*program, ranks, {.roots = {0, ranks / 3, ranks - 1}, .hierarchy = &hierarchy});
    if (!status.ok()) return refused(status);
  }
  return {};
}

Result<std::vector<ProgramPtr>> load_user_programs(const std::string& path, int ranks) {
  auto programs = read_programs(path);
  if (!programs.ok()) return refused(programs.status());
  std::vector<ProgramPtr> accepted;
  for (const ProgramPtr& program : *programs) {
    if (const Status status = accept(program, ranks, accepted); !status.ok()) return refused(status);
    accepted.push_back(program);
  }
  return accepted;
}

}  // namespace weft
