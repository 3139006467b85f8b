#include "tuner/tune.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "plan/shape.hpp"
#include "program/embedded.hpp"
#include "status/parse.hpp"

namespace weft {
namespace {

constexpr std::array<const char*, kTopologyKinds> kKinds = {"shm", "tcp", "hosts"};
constexpr std::pair<std::string_view, double KindTune::*> kParameters[] = {{"alpha", &KindTune::alpha},
                                                                           {"message", &KindTune::message},
                                                                           {"beta", &KindTune::beta},
                                                                           {"gamma", &KindTune::gamma}};
constexpr double kMostParameter = 1e9, kLeastFactor = 1e-6, kMostFactor = 1e6;
constexpr int kMostRanks = 1 << 20;
constexpr size_t kMostBytes = size_t{1} << 50;
constexpr std::uintmax_t kMostFile = 4 << 20;

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (size_t begin = line.find_first_not_of(kBlank); begin < line.size();) {
    const size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlank, end);
  }
  return words;
}

// One line after the other; what a line may be depends on those before it.
class TuneParser {
 public:
  explicit TuneParser(std::string file) : file_(std::move(file)) {}

  Status line(std::string_view text) {
    ++line_;
    const auto words = words_of(text);
    if (words.empty()) return {};
    if (!versioned_) return version(words);
    if (words[0] == "kind") return kind(words);
    if (kind_ == nullptr) return wrong(words[0], "before the first kind", "kind shm, kind tcp, kind hosts");
    if (words[0] == "cores") return cores(words);
    for (size_t i = 0; i < std::size(kParameters); ++i) {
      if (words[0] == kParameters[i].first) return parameter(words, i);
    }
    return correction(words);
  }

  Result<Tune> finish() {
    ++line_;
    if (!versioned_) return wrong("the end", "there is no version", "weft-tune 1");
    WEFT_RETURN_IF_ERROR(finish_kind());
    return std::move(tune_);
  }

 private:
  Status wrong(std::string_view value, std::string_view why, std::string_view legal) const {
    return error(weftInvalidArgument, "{}:{}: {}: {}; legal: {}", file_, line_, value, why, legal);
  }

  Status version(const std::vector<std::string_view>& words) {
    if (words.size() != 2 || words[0] != "weft-tune") return wrong(words[0], "not a tune file", "weft-tune 1");
    if (words[1] != "1") return wrong(words[1], "a version that this library does not read", "1");
    versioned_ = true;
    return {};
  }

  Status finish_kind() const {
    for (size_t i = 0; kind_ != nullptr && i < std::size(kParameters); ++i) {
      if (!given_[i]) return wrong(kParameters[i].first, "the kind before this line has none", "a number of 0 to 1e9");
    }
    return {};
  }

  Status kind(const std::vector<std::string_view>& words) {
    WEFT_RETURN_IF_ERROR(finish_kind());
    const auto which = words.size() == 2 ? topology_kind_of(words[1]) : std::nullopt;
    if (!which) return wrong(words.size() > 1 ? words[1] : words[0], "no kind of topology", "shm, tcp, hosts");
    auto& kind = tune_.kinds[static_cast<size_t>(*which)];
    if (kind) return wrong(words[1], "for the second time", "each kind once");
    kind_ = &kind.emplace();
    given_ = {};
    return {};
  }

  Status parameter(const std::vector<std::string_view>& words, size_t which) {
    const auto value = words.size() == 2 ? parse_number(words[1]) : std::nullopt;
    if (!value || *value < 0 || *value > kMostParameter) {
      return wrong(words.size() > 1 ? words[1] : words[0], fmt::format("not a {}", words[0]), "one number of 0 to 1e9");
    }
    if (given_[which]) return wrong(words[0], "for the second time", "once for each kind");
    given_[which] = true;
    kind_->*kParameters[which].second = *value;
    return {};
  }

  Status cores(const std::vector<std::string_view>& words) {
    const auto value = words.size() == 2 ? parse_integer<int>(words[1]) : std::nullopt;
    if (!value || *value < 1)
      return wrong(words.size() > 1 ? words[1] : words[0], "not a number of cores", "1 or more");
    if (kind_->cores > 0) return wrong(words[0], "for the second time", "once for each kind");
    kind_->cores = *value;
    return {};
  }

  Status correction(const std::vector<std::string_view>& words) {
    const auto collective = collective_of(words[0]);
    if (!collective || *collective == Collective::sendrecv) {
      return wrong(words[0], "not known",
                   "kind, cores, alpha, message, beta, gamma, or a collective such as allreduce");
    }
    if (words.size() < 4) {
      return wrong(words[0], "incomplete", "COLLECTIVE ALGORITHM RANKS BYTES:FACTOR..., as in allreduce ring 2 8:1.2");
    }
    Correction read;
    const auto ranks = parse_integer<int>(words[2]);
    if (!ranks || *ranks < 1 || *ranks > kMostRanks) return wrong(words[2], "not a number of ranks", "1 to 1048576");
    read.ranks = *ranks;
    for (size_t i = 3; i < words.size(); ++i) {
      const size_t colon = words[i].find(':');
      const auto size = parse_size(words[i].substr(0, colon));
      const auto factor = colon < words[i].size() ? parse_number(words[i].substr(colon + 1)) : std::nullopt;
      if (!size || *size < 1 || *size > kMostBytes || !factor || *factor < kLeastFactor || *factor > kMostFactor) {
        return wrong(words[i], "not a size and its factor",
                     "BYTES:FACTOR, as in 64K:1.25, with 1 to 1048576G bytes and a factor of 1e-6 to 1e6");
      }
      if (!read.factors.empty() && *size <= read.factors.back().first) {
        return wrong(words[i], "not above the size before it", "sizes that rise");
      }
      read.factors.emplace_back(*size, *factor);
    }
    auto& all = kind_->corrections[{*collective, std::string(words[1])}];
    const auto place = std::lower_bound(all.begin(), all.end(), read.ranks,
                                        [](const Correction& known, int wanted) { return known.ranks < wanted; });
    if (place != all.end() && place->ranks == read.ranks) {
      return wrong(fmt::format("{} {} {}", words[0], words[1], words[2]), "for the second time", "once for each kind");
    }
    all.insert(place, std::move(read));
    return {};
  }

  std::string file_;
  Tune tune_;
  KindTune* kind_ = nullptr;
  std::array<bool, std::size(kParameters)> given_{};
  bool versioned_ = false;
  int line_ = 0;
};

// The logarithm to base 2 and its inverse, both linear between powers of two: the C library's may differ from machine
// to machine in the last bit, and then the ranks might not agree.
double lg(double value) {
  int exponent = 0;
  const double half = std::frexp(value, &exponent);  // 0.5 to 1
  return exponent - 1 + (2 * half - 1);
}

double power(double logarithm) {
  const double whole = std::floor(logarithm);
  return std::ldexp(1 + (logarithm - whole), static_cast<int>(whole));
}

double interpolate(double low, double at_low, double high, double at_high, double value) {
  const double part = (lg(value) - lg(low)) / (lg(high) - lg(low));
  return power(lg(at_low) + (lg(at_high) - lg(at_low)) * part);
}

double factor_of(const Correction& correction, size_t bytes) {
  const auto& factors = correction.factors;
  const auto above = std::lower_bound(factors.begin(), factors.end(), bytes,
                                      [](const auto& known, size_t wanted) { return known.first < wanted; });
  if (above == factors.begin()) return above->second;
  const auto below = above - 1;
  if (above == factors.end()) return below->second;
  return interpolate(static_cast<double>(below->first), below->second, static_cast<double>(above->first), above->second,
                     static_cast<double>(bytes));
}

}  // namespace

const char* name_of(TopologyKind kind) { return kKinds.at(static_cast<size_t>(kind)); }

std::optional<TopologyKind> topology_kind_of(std::string_view name) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (name == kKinds[i]) return static_cast<TopologyKind>(i);
  }
  return std::nullopt;
}

TopologyKind kind_of(const Topology& topology) {
  return topology.nodes == 1 ? TopologyKind::shm : topology.machines == 1 ? TopologyKind::tcp : TopologyKind::hosts;
}

Topology topology_of(TopologyKind kind, int ranks) {
  Topology topology;
  topology.ranks = ranks;
  topology.nodes = kind == TopologyKind::shm ? 1 : ranks;
  topology.machines = kind == TopologyKind::hosts ? ranks : 1;
  for (int rank = 0; rank < ranks; ++rank) topology.node.push_back(topology.nodes == 1 ? 0 : rank);
  topology.one_process = false;
  topology.hierarchy = Hierarchy::flat(ranks);
  return topology;
}

std::optional<double> KindTune::correction(Collective collective, const std::string& algorithm,
                                           const Topology& topology, size_t bytes) const {
  const auto found = corrections.find(std::pair(collective, algorithm));
  if (found == corrections.end()) return std::nullopt;
  const std::vector<Correction>& all = found->second;
  auto end = all.end();
  if (cores > 0 && !topology.oversubscribed && all.front().ranks <= cores) {
    while (std::prev(end)->ranks > cores) --end;
  }
  const int ranks = topology.ranks;
  const auto above = std::lower_bound(all.begin(), end, ranks,
                                      [](const Correction& known, int wanted) { return known.ranks < wanted; });
  if (above == all.begin()) return factor_of(*above, bytes);
  const auto below = above - 1;
  if (above == end) return factor_of(*below, bytes);
  return interpolate(below->ranks, factor_of(*below, bytes), above->ranks, factor_of(*above, bytes), ranks);
}

Result<Tune> parse_tune(std::string_view text, const std::string& file) {
  TuneParser parser(file);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    WEFT_RETURN_IF_ERROR(parser.line(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  auto tune = parser.finish();
  if (tune.ok()) tune->text = text;
  return tune;
}

const TunePtr& default_tune() {
  static const TunePtr tune = [] {
    const EmbeddedFile& embedded = embedded_tune().front();
    auto parsed = parse_tune(embedded.text, std::string(embedded.file));
    if (!parsed.ok()) throw std::logic_error(parsed.status().message());  // the tests parse it
    return std::make_shared<const Tune>(std::move(*parsed));
  }();
  return tune;
}

Result<TunePtr> read_tune(const std::string& path) {
  if (path.empty()) return default_tune();
  const auto refused = [&](const std::string& why) {
    return error(weftInvalidArgument, "WEFT_TUNE_FILE={}: {}", path, why);
  };
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (failed) return refused(failed.message());
  if (size > kMostFile) return refused(fmt::format("{} bytes; legal: up to {}", size, kMostFile));
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return refused("it cannot be read");
  auto own = parse_tune(text, path);
  if (!own.ok()) return refused(own.status().message());
  for (size_t i = 0; i < own->kinds.size(); ++i) {
    if (!own->kinds[i]) own->kinds[i] = default_tune()->kinds[i];
  }
  own->text += default_tune()->text;
  return std::make_shared<const Tune>(std::move(*own));
}

}  // namespace weft
