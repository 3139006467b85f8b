#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/program.hpp"

using namespace weft::perf;

namespace {

// Who sends how much to whom: a matrix from a file (bytes), or a pattern in which a rank sends more to ranks that are
// further away by number. Set once, before the ranks start.
struct Traffic {
  double spread = 1;
  std::vector<std::vector<size_t>> matrix;

  // Bytes from rank i to rank j where each rank sends `total` in all, a multiple of 16. With spread 0 all peers get the
  // same; with spread 1 a peer's part is its distance over the sum of all distances.
  size_t bytes(int i, int j, int ranks, size_t total) const {
    if (!matrix.empty()) return matrix[static_cast<size_t>(i)][static_cast<size_t>(j)];
    if (ranks == 1) return total & ~size_t{15};
    int distance = (j - i + ranks) % ranks;
    double even = static_cast<double>(total) / ranks;
    double weighted = static_cast<double>(total) * distance / (0.5 * ranks * (ranks - 1));
    return static_cast<size_t>((1 - spread) * even + spread * weighted) & ~size_t{15};
  }
};

Traffic traffic;

size_t elements(int from, int to, int ranks, size_t count, size_t element) {
  return traffic.bytes(from, to, ranks, count * static_cast<size_t>(ranks) * element) / element;
}

// The sizes of a row are the largest of any rank.
Sizes sizes(size_t count, size_t element, int ranks) {
  size_t param = traffic.matrix.empty() ? share(count, element, ranks) : 0;
  size_t send = 0, recv = 0;
  int scanned = traffic.matrix.empty() ? 1 : ranks;  // the generated pattern is the same seen from every rank
  for (int i = 0; i < scanned; ++i) {
    size_t sent = 0, received = 0;
    for (int j = 0; j < ranks; ++j) {
      sent += elements(i, j, ranks, param, element);
      received += elements(j, i, ranks, param, element);
    }
    send = std::max(send, sent);
    recv = std::max(recv, received);
  }
  return {send, recv, param, 0, 0};
}

weftResult_t run(const Call& c) {
  auto ranks = static_cast<size_t>(c.ranks);
  std::vector<size_t> send_counts(ranks), send_displs(ranks), recv_counts(ranks), recv_displs(ranks);
  size_t sent = 0, received = 0;
  for (size_t j = 0; j < ranks; ++j) {
    int peer = static_cast<int>(j);
    send_counts[j] = elements(c.rank, peer, c.ranks, c.count, c.element);
    recv_counts[j] = elements(peer, c.rank, c.ranks, c.count, c.element);
    send_displs[j] = sent;
    recv_displs[j] = received;
    sent += send_counts[j];
    received += recv_counts[j];
  }
  return weftAlltoAllv(c.send, send_counts.data(), send_displs.data(), c.recv, recv_counts.data(), recv_displs.data(),
                       c.type, c.comm, c.stream);
}

std::vector<Piece> expected(const Place& p) {
  std::vector<Piece> pieces;
  size_t at = 0;
  for (int source = 0; source < p.ranks; ++source) {
    size_t from = 0;
    for (int j = 0; j < p.rank; ++j) from += elements(source, j, p.ranks, p.count, p.element);
    size_t count = elements(source, p.rank, p.ranks, p.count, p.element);
    pieces.push_back({at, count, source, from});
    at += count;
  }
  return pieces;
}

std::string read_matrix(const Environment& environment, int ranks) {
  const std::string& path = environment.alltoallv_matrix_file;
  std::ifstream file(path);
  if (!file) return fmt::format("NCCL_TESTS_ALLTOALLV_MATRIX_FILE='{}' cannot be read", path);
  std::vector<std::vector<size_t>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<size_t> row;
    for (std::string word; words >> word;) {
      char* end = nullptr;
      double bytes = std::strtod(word.c_str(), &end) * environment.alltoallv_matrix_scale;
      if (*end != '\0' || !(bytes >= 0 && bytes <= 1e18))
        return fmt::format("{}: '{}' in row {} is no number of bytes", path, word, rows.size() + 1);
      row.push_back(static_cast<size_t>(bytes) & ~size_t{15});
    }
    if (!row.empty()) rows.push_back(std::move(row));
  }
  for (const auto& row : rows)
    if (row.size() != rows.size())
      return fmt::format("{}: a row of {} values in a matrix of {} rows; it must be square", path, row.size(),
                         rows.size());
  if (rows.size() < static_cast<size_t>(ranks))
    return fmt::format("{}: a matrix of {} rows, but there are {} ranks", path, rows.size(), ranks);
  traffic.matrix = std::move(rows);
  return "";
}

std::string prepare(const Options& options, const Environment& environment, int ranks) {
  traffic = {environment.alltoallv_spread, {}};
  if (environment.alltoallv_matrix_file.empty()) return "";
  std::string problem = read_matrix(environment, ranks);
  if (!problem.empty()) return problem;
  if (options.min_bytes != options.max_bytes)
    return fmt::format("a traffic matrix sets the sizes: -b {} and -e {} must be equal", options.min_bytes,
                       options.max_bytes);
  Sizes s = sizes(0, 1, ranks);
  if (std::max(s.send, s.recv) > options.max_bytes)
    return fmt::format("the traffic matrix needs buffers of {} bytes: -e {} is too small", std::max(s.send, s.recv),
                       options.max_bytes);
  return "";
}

const Program kAlltoAllv{
    .name = "alltoallv_perf",
    .reduces = false,
    .rooted = false,
    .in_place = InPlace::kNone,
    .sizes = sizes,
    .run = run,
    .expected = expected,
    .bus_factor = all_but_own,
    .prepare = prepare,
};

}  // namespace

int main(int argc, char** argv) { return perf_main(kAlltoAllv, argc, argv); }
