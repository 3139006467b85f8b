// Sizes beyond 32 bits: where chunks and tiles lie, without the memory (B41, B42); and with it, where it is asked for.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>

#include "bind/geometry.hpp"
#include "case.hpp"

namespace weft::testing {
namespace {

using Wide = uint64_t;

std::byte* const kIn = reinterpret_cast<std::byte*>(uintptr_t{1} << 44);
std::byte* const kOut = reinterpret_cast<std::byte*>(uintptr_t{1} << 45);

std::shared_ptr<const Plan> plan_of(Collective collective, const char* name, int ranks, int rank) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->collective() != collective || program->name() != name) continue;
    auto plan = expand(*program, {.ranks = ranks, .rank = rank, .root = 0, .in_place = false});
    EXPECT_TRUE(plan.ok());
    return *plan;
  }
  ADD_FAILURE() << name;
  return nullptr;
}

// All tiles of all chunks of one block follow each other and are the block, to the byte.
void expect_covered(const Geometry& geometry, const Plan& plan, Buffer buffer, uint32_t block, Wide begin, Wide bytes) {
  const std::byte* base = buffer == Buffer::in ? kIn : kOut;
  Wide at = begin;
  for (uint32_t part = 0; part < plan.chunks_per_block; ++part) {
    for (uint32_t tile = 0; tile < geometry.tiles(); ++tile) {
      const Piece piece = geometry.piece(buffer, block * plan.chunks_per_block + part, tile);
      if (piece.bytes == 0) continue;
      ASSERT_EQ(static_cast<Wide>(piece.data - base), at) << "block " << block << " part " << part << " tile " << tile;
      at += piece.bytes;
    }
  }
  ASSERT_EQ(at, begin + bytes);
}

TEST(Large, ChunksOfOneBlock) {
  const struct {
    weftDataType_t type;
    size_t count;
  } kSizes[] = {
      {weftFloat64, (size_t{1} << 28) + 1}, {weftInt8, (size_t{1} << 31) + 1}, {weftFloat16, (size_t{1} << 33) + 7}};
  for (const auto& [type, count] : kSizes) {
    for (const char* name : {"ring", "flat", "double_tree", "halving_doubling"}) {
      for (const size_t tile : {size_t{256} << 10, size_t{1} << 30}) {
        const auto plan = plan_of(Collective::allreduce, name, 2, 1);
        Call call;
        call.collective = Collective::allreduce;
        call.count = count;
        call.type = type;
        Geometry geometry;
        geometry.bind(call, *plan, type_bytes(type), tile, 4);
        geometry.set_buffers(kIn, kOut);
        expect_covered(geometry, *plan, Buffer::in, 0, 0, Wide{count} * type_bytes(type));
        expect_covered(geometry, *plan, Buffer::out, 0, 0, Wide{count} * type_bytes(type));
      }
    }
  }
}

TEST(Large, BlocksWhoseSumIsBeyond32Bits) {
  constexpr size_t kCount = (size_t{1} << 30) + 1;
  for (const Collective collective : {Collective::allgather, Collective::alltoall, Collective::allgatherv}) {
    const auto plan = plan_of(collective, collective == Collective::alltoall ? "pairwise" : "ring", 4, 2);
    Call call;
    call.collective = collective;
    call.count = kCount;
    call.type = weftInt8;
    if (collective == Collective::allgatherv) {
      call.out_counts.assign(4, kCount);
      call.out_displs = {3 * kCount + 5, 0, kCount + 1, 2 * kCount + 3};
    }
    Geometry geometry;
    geometry.bind(call, *plan, 1, 1 << 20, 4);
    geometry.set_buffers(kIn, kOut);
    for (uint32_t block = 0; block < 4; ++block) {
      const Wide begin = call.out_displs.empty() ? Wide{block} * kCount : call.out_displs[block];
      expect_covered(geometry, *plan, Buffer::out, block, begin, kCount);
    }
  }
}

// However large the tiles are asked to be, a message of many chunks stays within what a wire can say.
TEST(Large, MessagesStayBelow32Bits) {
  for (const int ranks : {4, 64, 512}) {
    const auto plan = plan_of(Collective::allgather, "bruck", ranks, 0);
    Call call;
    call.collective = Collective::allgather;
    call.count = size_t{1} << 33;
    call.type = weftInt8;
    Geometry geometry;
    geometry.bind(call, *plan, 1, size_t{1} << 30, 1);
    for (const Op& op : plan->ops) {
      ASSERT_LE(geometry.bytes(op.verb == Verb::send ? plan->src(op) : plan->dst(op), 0), size_t{UINT32_MAX});
    }
  }
}

TEST(Large, ChunksAreCutAtWholeLines) {
  for (const size_t elements :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{1000}, (size_t{1} << 40) + 3}) {
    for (const uint32_t chunks : {1u, 2u, 3u, 7u, 16u, 1000u}) {
      size_t at = 0;
      for (uint32_t i = 0; i < chunks; ++i) {
        const Span span = chunk_span(elements, i, chunks, 4);
        ASSERT_EQ(span.begin, at);
        ASSERT_TRUE(at == elements || span.begin % 16 == 0);
        at += span.size;
        ASSERT_LE(span.size, elements / chunks + 16);
      }
      ASSERT_EQ(at, elements);
    }
  }
}

// B41 with the memory: a little more than two gigabytes for each rank.
template <typename T>
void all_reduce_in_place(size_t count, weftDataType_t type) {
  if (!test_full()) GTEST_SKIP() << "WEFT_TEST_FULL=1 runs it";
  const size_t bytes = count * sizeof(T);
  struct sysinfo info {};
  ASSERT_EQ(::sysinfo(&info), 0);
  if (Wide{info.freeram} * info.mem_unit < Wide{3} * bytes) GTEST_SKIP() << "not enough free memory";
  run_processes(2,
                [=](int rank, weftComm_t comm) {
                  // Sums stay below 128, so that they are exact in every type.
                  const auto fill = [](size_t i, int of) { return static_cast<T>((i * 2654435761u >> 13) % 60 + of); };
                  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                  ASSERT_NE(memory, MAP_FAILED);
                  T* data = static_cast<T*>(memory);
                  for (size_t i = 0; i < count; ++i) data[i] = fill(i, rank);
                  WEFT_ASSERT_OK(weftAllReduce(data, data, count, type, weftSum, comm, nullptr), comm);
                  size_t wrong = 0;
                  for (size_t i = 0; i < count; ++i) wrong += data[i] != static_cast<T>(fill(i, 0) + fill(i, 1));
                  EXPECT_EQ(wrong, 0U);
                },
                {{"WEFT_TIMEOUT", "300"}});
}

TEST(Large, AllReduceOfInt8Beyond32Bits) { all_reduce_in_place<int8_t>((size_t{1} << 31) + 1, weftInt8); }
TEST(Large, AllReduceOfFloat64Beyond32Bits) { all_reduce_in_place<double>((size_t{1} << 28) + 1, weftFloat64); }

}  // namespace
}  // namespace weft::testing
