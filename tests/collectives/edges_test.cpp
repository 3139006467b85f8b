// Single cases at the edges: nothing to send, one rank, partial overlaps, roots, numbers.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "case.hpp"

namespace weft::testing {
namespace {

using reference::Bits;

template <typename T>
std::vector<T> column(std::initializer_list<T> values) {
  return values;
}

const std::vector<Collective>& collectives() {
  static const auto* const all = [] {
    auto* list = new std::vector<Collective>;
    for (int c = 0; c < kCollectives; ++c) {
      if (static_cast<Collective>(c) != Collective::sendrecv) list->push_back(static_cast<Collective>(c));
    }
    return list;
  }();
  return *all;
}

void run_cases(int ranks, const std::vector<Expectation>& cases, const Variables& variables = {},
               Mode mode = Mode::threads) {
  run_ranks(
      mode, ranks,
      [&cases](int rank, weftComm_t comm) {
        weftStream_t stream = nullptr;
        WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
        for (const Expectation& expectation : cases) expectation.run(rank, comm, stream);
        WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
      },
      variables);
}

// B39
TEST(Edges, NothingToSend) {
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<Expectation> cases;
    for (const Collective collective : collectives()) {
      for (const bool stream : {false, true}) {
        Case call;
        call.collective = collective;
        call.ranks = ranks;
        call.op = static_cast<weftRedOp_t>(cases.size() % (weftNumOps + 1));
        call.type = static_cast<weftDataType_t>(cases.size() % weftNumTypes);
        call.root = ranks - 1;
        call.seed = cases.size();
        call.stream = stream;
        cases.emplace_back(call, nullptr);
      }
    }
    run_threads(ranks, [&](int rank, weftComm_t comm) {
      weftStats_t before{.size = sizeof before}, after{.size = sizeof after};
      weftStream_t stream = nullptr;
      WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
      WEFT_ASSERT_OK(weftCommGetStats(comm, &before), comm);
      for (const Expectation& expectation : cases) expectation.run(rank, comm, stream);
      // Each still counts, in order: a call with something in it comes right after.
      WEFT_ASSERT_OK(weftCommGetStats(comm, &after), comm);
      EXPECT_EQ(after.operations - before.operations, cases.size());
      int one = 1, sum = 0;
      WEFT_EXPECT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
      EXPECT_EQ(sum, ranks);
      WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
    });
  }
}

// Messages that came to this rank without a copy of its own.
uint64_t placed(weftComm_t comm) {
  std::string text(size_t{1} << 20, ' ');
  size_t length = text.size();
  WEFT_EXPECT_OK(weftCommDump(comm, weftDumpJson, text.data(), &length), comm);
  const auto json = nlohmann::json::parse(text.substr(0, length - 1));
  uint64_t messages = 0;
  for (const auto& wire : json["wires"]) messages += wire["messages_placed"].get<uint64_t>();
  return messages;
}

// What one rank adds up, others wait for in memory that it may write: it does, in whatever way the ranks' calls are in
// place, and nothing else is written.
TEST(Edges, SumsInSharedMemory) {
  for (const int ranks : {2, 3}) {
    std::vector<Expectation> cases;
    for (uint32_t i = 0; i < 12; ++i) {
      Case call;
      call.ranks = ranks;
      call.type = i % 3 == 0 ? weftFloat32 : i % 3 == 1 ? weftFloat16 : weftInt64;
      call.op = static_cast<weftRedOp_t>(i % (weftNumOps + 1));
      call.count = std::array<size_t, 4>{61001, 9001 * static_cast<size_t>(ranks), 130003, 250007}[i % 4];
      call.in_place = i < 4 ? 0 : i < 8 ? ~0U : i;
      call.seed = 7 * i;
      call.shared_memory = true;
      cases.emplace_back(call, nullptr);
    }
    for (const char* transport : {"loop", "shm", "tcp"}) {
      for (const char* algorithm : {"ring", "halving_doubling"}) {
        run_threads(ranks,
                    [&](int rank, weftComm_t comm) {
                      for (const Expectation& expectation : cases) expectation.run(rank, comm, nullptr);
                      const bool maps = transport != std::string("tcp");
                      // With more ranks it depends on who comes first.
                      const bool sure = !maps || (ranks == 2 && algorithm == std::string("ring"));
                      EXPECT_TRUE(!sure || (placed(comm) > 0) == maps) << transport << " " << algorithm;
                    },
                    {{"WEFT_TRANSPORT", transport}, {"WEFT_ALGO", algorithm}, {"WEFT_TILE", "64K"}});
      }
    }
  }
}

long resident_kib() {
  std::ifstream statm("/proc/self/statm");
  long pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * 4;
}

// B11: one rank; every call is a plain copy, and memory does not grow.
TEST(Edges, OneRank) {
  std::vector<Expectation> cases;
  for (const Collective collective : collectives()) {
    for (int i = 0; i < 12; ++i) {
      Case call;
      call.collective = collective;
      call.op = static_cast<weftRedOp_t>(i % (weftNumOps + 1));
      call.type = static_cast<weftDataType_t>(i % weftNumTypes);
      call.count = static_cast<size_t>(i * i);
      call.seed = static_cast<uint64_t>(i);
      call.in_place = static_cast<uint32_t>(i & 1);
      call.stream = i % 4 == 0;
      cases.emplace_back(call, nullptr);
    }
  }
  run_cases(1, cases);
  run_threads(1, [](int, weftComm_t comm) {
    weftComm_t half = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 3, 0, &half, nullptr), comm);
    std::vector<float> in(64, 1.5f), out(64);
    long before = 0;
    const int calls = sanitized() ? 10000 : 100000;
    for (int i = 0; i < calls; ++i) {
      if (i == calls / 10) before = resident_kib();
      WEFT_ASSERT_OK(weftAllReduce(in.data(), out.data(), in.size(), weftFloat32, weftSum, half, nullptr), half);
    }
    EXPECT_EQ(in, out);
    EXPECT_LT(resident_kib() - before, 2048) << "memory grew";
    WEFT_EXPECT_OK(weftCommDestroy(half), nullptr);
  });
}

// B40: rank 2 sends nothing, rank 1 gets nothing, displacements of empty blocks lead nowhere.
TEST(Edges, UnevenAllToAll) {
  constexpr size_t kNowhere = 1000000000;
  for (const char* algorithm : {"flat", "pairwise"}) {
    run_threads(4,
                [](int rank, weftComm_t comm) {
                  const auto me = static_cast<size_t>(rank);
                  const auto count = [](size_t from, size_t to) -> size_t {
                    return from == 2 || to == 1 ? 0 : 3 + from * 4 + to;
                  };
                  std::vector<size_t> send_counts, send_displs, recv_counts, recv_displs;
                  std::vector<int> in, expected;
                  for (size_t other = 0; other < 4; ++other) {
                    send_counts.push_back(count(me, other));
                    send_displs.push_back(count(me, other) == 0 ? kNowhere : in.size());
                    for (size_t i = 0; i < count(me, other); ++i)
                      in.push_back(static_cast<int>(me * 1000 + other * 100 + i));
                    recv_counts.push_back(count(other, me));
                    recv_displs.push_back(count(other, me) == 0 ? kNowhere : expected.size());
                    for (size_t i = 0; i < count(other, me); ++i)
                      expected.push_back(static_cast<int>(other * 1000 + me * 100 + i));
                  }
                  std::vector<int> out(expected.size());
                  WEFT_EXPECT_OK(weftAlltoAllv(in.data(), send_counts.data(), send_displs.data(), out.data(),
                                               recv_counts.data(), recv_displs.data(), weftInt32, comm, nullptr),
                                 comm);
                  EXPECT_EQ(out, expected) << rank;
                },
                {{"WEFT_ALGO", fmt::format("alltoallv:{}", algorithm)}});
  }
}

// B44: blocks of uneven size are what the v-variant is for: 10 elements over 4 ranks.
TEST(Edges, ReduceScatterWithARemainder) {
  run_threads(4, [](int rank, weftComm_t comm) {
    const size_t counts[] = {3, 3, 2, 2}, displs[] = {0, 3, 6, 8};
    const auto me = static_cast<size_t>(rank);
    std::vector<int> in(10), out(counts[me]);
    std::iota(in.begin(), in.end(), rank);
    WEFT_EXPECT_OK(
        weftReduceScatterv(in.data(), counts, displs, out.data(), counts[me], weftInt32, weftSum, comm, nullptr), comm);
    for (size_t i = 0; i < counts[me]; ++i) EXPECT_EQ(out[i], 4 * static_cast<int>(displs[me] + i) + 6);
    EXPECT_EQ(
        weftReduceScatterv(in.data(), counts, displs, out.data(), counts[me] + 1, weftInt32, weftSum, comm, nullptr),
        weftInvalidArgument);
    EXPECT_NE(std::string(weftGetLastError(comm)).find("recvcount"), std::string::npos) << weftGetLastError(comm);
  });
}

// B46, B50: in place, at every root, for every program, 1 to 7 ranks.
TEST(Edges, InPlaceAtEveryRoot) {
  for (const int ranks : {1, 3, 5, 6, 7}) {
    for (size_t turn = 0; turn < 5; ++turn) {
      std::string algo;
      std::vector<Expectation> cases;
      for (const Collective collective : collectives()) {
        std::vector<ProgramPtr> programs;
        for (const ProgramPtr& program : builtin_programs()) {
          if (program->collective() == collective && program->supports(ranks)) programs.push_back(program);
        }
        const ProgramPtr& program = programs[turn % programs.size()];
        algo += fmt::format("{}{}:{}", algo.empty() ? "" : ",", name_of(collective), program->name());
        for (int root = 0; root < (has_root(collective) ? ranks : 1); ++root) {
          for (const uint32_t in_place : {0u, ~0u}) {
            Case call;
            call.collective = collective;
            call.ranks = ranks;
            call.type = weftInt32;
            call.count = 100 + static_cast<size_t>(root);
            call.root = root;
            call.in_place = in_place;
            call.seed = cases.size();
            cases.emplace_back(call, program.get());
          }
        }
      }
      run_cases(ranks, cases, {{"WEFT_ALGO", algo}, {"WEFT_TILE", "128"}});
    }
  }
}

// B47
TEST(Edges, PartialOverlapIsRefused) {
  run_threads(2, [](int rank, weftComm_t comm) {
    std::vector<float> memory(64, 1);
    float* a = memory.data();
    const auto refused = [&](weftResult_t result) {
      EXPECT_EQ(result, weftInvalidArgument);
      EXPECT_NE(std::string(weftGetLastError(comm)).find("overlap"), std::string::npos) << weftGetLastError(comm);
    };
    refused(weftAllReduce(a + 1, a, 8, weftFloat32, weftSum, comm, nullptr));
    refused(weftAllGather(a + 1, a, 8, weftFloat32, comm, nullptr));
    refused(weftReduceScatter(a, a + 1, 8, weftFloat32, weftSum, comm, nullptr));
    refused(weftAlltoAll(a, a + 8, 8, weftFloat32, comm, nullptr));
    const size_t counts[] = {8, 8}, displs[] = {0, 8};
    refused(weftAlltoAllv(a, counts, displs, a, counts, displs, weftFloat32, comm, nullptr));
    refused(weftAllGatherv(a + 4, 8, a, counts, displs, weftFloat32, comm, nullptr));
    if (rank == 0) {  // where the argument matters
      refused(weftReduce(a, a + 4, 8, weftFloat32, weftSum, 0, comm, nullptr));
      refused(weftBroadcast(a, a + 4, 8, weftFloat32, 0, comm, nullptr));
      refused(weftGather(a + 4, a, 8, weftFloat32, 0, comm, nullptr));
      refused(weftScatter(a, a + 4, 8, weftFloat32, 0, comm, nullptr));
    }
    // The neighbours of an overlap are legal, and nothing of the above was issued.
    WEFT_EXPECT_OK(weftAllReduce(a + 8, a, 8, weftFloat32, weftSum, comm, nullptr), comm);
    EXPECT_EQ(a[0], 2);
  });
}

// B48: addresses off by an element or a byte change no bit.
TEST(Edges, UnalignedBuffersGiveTheSameBits) {
  for (const weftDataType_t type : {weftFloat16, weftBfloat16, weftFloat32, weftFloat64, weftInt64}) {
    run_threads(3, [type](int rank, weftComm_t comm) {
      constexpr size_t kCount = 5000;
      const size_t bytes = kCount * type_bytes(type);
      std::vector<std::byte> input(bytes), aligned(bytes);
      reference::fill(reference::Pattern::kFinite, type, weftSum, 9, rank, 0, input.data(), kCount);
      WEFT_EXPECT_OK(weftAllReduce(input.data(), aligned.data(), kCount, type, weftSum, comm, nullptr), comm);
      for (const size_t off : {type_bytes(type), size_t{1}, size_t{1} + type_bytes(type)}) {
        std::vector<std::byte> in(bytes + 64), out(bytes + 64);
        std::memcpy(in.data() + off, input.data(), bytes);
        WEFT_EXPECT_OK(weftAllReduce(in.data() + off, out.data() + off, kCount, type, weftSum, comm, nullptr), comm);
        EXPECT_EQ(reference::first_difference(type, out.data() + off, aligned.data(), kCount), "") << "off by " << off;
      }
    });
  }
}

// B54: bits that depend on the order of the hops are the same on every rank, in a second run, and for ranks in place.
TEST(Edges, AllRanksHoldTheSameBits) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->collective() != Collective::allreduce) continue;
    for (const int ranks : {3, 4, 7}) {
      if (!program->supports(ranks)) continue;
      for (const weftDataType_t type : {weftFloat16, weftBfloat16, weftFloat32}) {
        constexpr size_t kCount = 3001;
        const size_t bytes = kCount * type_bytes(type);
        std::vector<std::vector<std::byte>> results(static_cast<size_t>(ranks));
        for (int repetition = 0; repetition < 2; ++repetition) {
          run_threads(ranks,
                      [&](int rank, weftComm_t comm) {
                        std::vector<std::byte> in(bytes), out(bytes);
                        reference::fill(reference::Pattern::kFinite, type, weftSum, 4, rank, 0, in.data(), kCount);
                        std::byte* to = rank % 2 == repetition ? in.data() : out.data();
                        WEFT_EXPECT_OK(weftAllReduce(in.data(), to, kCount, type, weftSum, comm, nullptr), comm);
                        auto& result = results[static_cast<size_t>(rank)];
                        if (repetition == 0) {
                          result.assign(to, to + bytes);
                        } else {
                          EXPECT_EQ(reference::first_difference(type, to, result.data(), kCount), "")
                              << "in a second run";
                        }
                      },
                      {{"WEFT_ALGO", fmt::format("allreduce:{}", program->name())}, {"WEFT_TILE", "512"}});
        }
        for (const auto& result : results) {
          EXPECT_EQ(reference::first_difference(type, result.data(), results[0].data(), kCount), "") << program->name();
        }
      }
    }
  }
}

// B55: 256 and seven 1s in bf16, whose spacing at 256 is 2. One rounding per hop: what it gives depends on the
// program's order, but is the same everywhere; wide, the sum is 263 in fp32 and 264 after the one rounding.
TEST(Edges, WideAccumulation) {
  const auto sum_of = [](const char* accumulate, const char* algorithm) {
    std::vector<Bits> results(8);
    run_threads(8,
                [&](int rank, weftComm_t comm) {
                  const Bits mine = reference::encode(weftBfloat16, rank == 0 ? 256 : 1);
                  Bits result = 0;
                  WEFT_EXPECT_OK(weftAllReduce(&mine, &result, 1, weftBfloat16, weftSum, comm, nullptr), comm);
                  results[static_cast<size_t>(rank)] = result;
                },
                {{"WEFT_ACCUM", accumulate}, {"WEFT_ALGO", algorithm}});
    for (const Bits result : results) EXPECT_EQ(result, results[0]) << algorithm;
    return reference::decode(weftBfloat16, results[0]);
  };
  for (const char* algorithm : {"ring", "flat", "recursive_doubling", "halving_doubling", "double_tree"}) {
    EXPECT_EQ(sum_of("wide", algorithm), 264) << algorithm;
  }
  // Folded from the left each 1 is lost to rounding: 257 is a tie, and ties go to the even 256.
  EXPECT_EQ(sum_of("narrow", "flat"), 256);
  // In pairs: 256+1 -> 256, 1+1 = 2; 256+2 = 258, 2+2 = 4; 258+4 = 262.
  EXPECT_EQ(sum_of("narrow", "recursive_doubling"), 262);
}

// B56
TEST(Edges, AverageOfIntegersTruncates) {
  run_threads(3, [](int rank, weftComm_t comm) {
    const int values[] = {1, 2, 4};
    for (const int sign : {1, -1}) {
      std::vector<int> in(5, sign * values[rank]), out(5);
      WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), 5, weftInt32, weftAvg, comm, nullptr), comm);
      EXPECT_EQ(out, std::vector<int>(5, sign * 2));  // 7/3
    }
    std::vector<float> in(5, static_cast<float>(values[rank])), out(5);
    WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), 5, weftFloat32, weftAvg, comm, nullptr), comm);
    EXPECT_EQ(out[0], 7.0f / 3);
  });
}

// B58
TEST(Edges, IntegersWrap) {
  run_threads(2, [](int rank, weftComm_t comm) {
    const int8_t in = rank == 0 ? 120 : 100;
    int8_t out = 0;
    WEFT_EXPECT_OK(weftAllReduce(&in, &out, 1, weftInt8, weftSum, comm, nullptr), comm);
    EXPECT_EQ(out, -36);
    const int64_t large = INT64_MAX;
    int64_t wrapped = 0;
    WEFT_EXPECT_OK(weftAllReduce(&large, &wrapped, 1, weftInt64, weftSum, comm, nullptr), comm);
    EXPECT_EQ(wrapped, -2);
  });
}

// A pre-multiplied sum whose factor is read when the collective runs, not when the op was made.
TEST(Edges, ScalarReadLate) {
  run_threads(2, [](int rank, weftComm_t comm) {
    float scalar = 0;
    weftRedOp_t op = weftSum;
    WEFT_ASSERT_OK(weftRedOpCreatePreMulSum(&op, &scalar, weftFloat32, weftScalarDevice, comm), comm);
    scalar = rank == 0 ? 0.5f : 2.0f;
    const float in = 3;
    float out = 0;
    WEFT_EXPECT_OK(weftAllReduce(&in, &out, 1, weftFloat32, op, comm, nullptr), comm);
    EXPECT_EQ(out, 7.5f);
    EXPECT_EQ(weftAllReduce(&in, &out, 1, weftInt32, op, comm, nullptr), weftInvalidArgument);
    WEFT_EXPECT_OK(weftRedOpDestroy(op, comm), comm);
    EXPECT_EQ(weftAllReduce(&in, &out, 1, weftFloat32, op, comm, nullptr), weftInvalidArgument);
    EXPECT_EQ(weftRedOpDestroy(op, comm), weftInvalidArgument);
  });
}

// Wrong arguments are named, with what is legal, and leave the communicator as it was.
TEST(Edges, WrongArguments) {
  run_threads(2, [](int, weftComm_t comm) {
    float a[4] = {}, b[4] = {};
    const auto says = [&](weftResult_t result, const char* name) {
      EXPECT_EQ(result, weftInvalidArgument) << name;
      EXPECT_NE(std::string(weftGetLastError(comm)).find(name), std::string::npos) << weftGetLastError(comm);
    };
    says(weftAllReduce(a, b, 4, static_cast<weftDataType_t>(12), weftSum, comm, nullptr), "datatype=12");
    says(weftAllReduce(a, b, 4, weftFloat32, static_cast<weftRedOp_t>(7), comm, nullptr), "op=7");
    says(weftAllReduce(nullptr, b, 4, weftFloat32, weftSum, comm, nullptr), "sendbuff");
    says(weftAllReduce(a, nullptr, 4, weftFloat32, weftSum, comm, nullptr), "recvbuff");
    says(weftAllReduce(a, b, SIZE_MAX / 2, weftFloat32, weftSum, comm, nullptr), "count=");
    says(weftAllGather(a, b, SIZE_MAX / 8, weftFloat32, comm, nullptr), "count=");
    says(weftBroadcast(a, b, 4, weftFloat32, 2, comm, nullptr), "root=2");
    says(weftBroadcast(a, b, 4, weftFloat32, -1, comm, nullptr), "root=-1");
    says(weftSend(a, 4, weftFloat32, 5, comm, nullptr), "peer=5");
    EXPECT_EQ(weftAllReduce(a, b, 4, weftFloat32, weftSum, nullptr, nullptr), weftInvalidArgument);
    EXPECT_NE(std::string(weftGetLastError(nullptr)).find("comm"), std::string::npos);
    WEFT_EXPECT_OK(weftAllReduce(a, b, 4, weftFloat32, weftSum, comm, nullptr), comm);
    // What has run before is not checked again; what only looks like it is.
    says(weftAllReduce(nullptr, b, 4, weftFloat32, weftSum, comm, nullptr), "sendbuff");
    says(weftAllReduce(a, a + 1, 4, weftFloat32, weftSum, comm, nullptr), "overlap");
    WEFT_EXPECT_OK(weftAllReduce(a, b, 4, weftInt8, weftProd, comm, nullptr), comm);
    if (!sanitized()) {  // a value that C allows and C++ does not
      says(weftAllReduce(a, b, 4, static_cast<weftDataType_t>(256 + weftInt8), weftSum, comm, nullptr), "datatype=256");
    }
  });
}

// Memory between the blocks of a v-variant is not the library's to read: here it cannot be read.
TEST(Edges, GapsBetweenBlocksAreNotTouched) {
  for (const char* accumulate : {"narrow", "wide"}) {
    run_threads(
        2,
        [](int rank, weftComm_t comm) {
          GuardedBuffer low(64, 0, GuardedBuffer::Against::end), high(64, 0, GuardedBuffer::Against::begin);
          std::byte* base = std::min(low.data(), high.data());
          std::byte* other = std::max(low.data(), high.data());
          const size_t counts[] = {32, 32}, displs[] = {0, static_cast<size_t>(other - base) / 2};
          for (std::byte* block : {base, other}) {
            for (size_t i = 0; i < 32; ++i)
              reference::store(weftFloat16, block + 2 * i, reference::encode(weftFloat16, 1.5));
          }
          std::byte out[64];
          Bits scalar = reference::encode(weftFloat16, 2);
          weftRedOp_t op = weftSum;
          WEFT_ASSERT_OK(weftRedOpCreatePreMulSum(&op, &scalar, weftFloat16, weftScalarHostImmediate, comm), comm);
          for (const weftRedOp_t each : {weftSum, op}) {
            WEFT_EXPECT_OK(weftReduceScatterv(base, counts, displs, out, 32, weftFloat16, each, comm, nullptr), comm);
            const Bits expected = reference::encode(weftFloat16, each == weftSum ? 3 : 6);
            for (size_t i = 0; i < 32; ++i) EXPECT_EQ(reference::load(weftFloat16, out + 2 * i), expected) << rank;
          }
        },
        {{"WEFT_ACCUM", accumulate}});
  }
}

}  // namespace
}  // namespace weft::testing
