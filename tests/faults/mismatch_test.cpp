// Ranks whose calls do not match: an error on both sides that shows both calls, never a hang (B59 to B62, B71).
#include <gtest/gtest.h>

#include "tests/faults/job.hpp"

namespace weft::faults {
namespace {

enum class Kind { all_reduce, broadcast, reduce, barrier, all_gather };

struct Called {
  Kind kind = Kind::all_reduce;
  size_t count = 1000;
  weftDataType_t type = weftFloat32;
  weftRedOp_t op = weftSum;
  int root = 0;
};

weftResult_t issue(const Called& call, weftComm_t comm, int size) {
  std::vector<std::byte> in(call.count * 8), out(call.count * 8 * static_cast<size_t>(size));
  switch (call.kind) {
    case Kind::all_reduce:
      return weftAllReduce(in.data(), out.data(), call.count, call.type, call.op, comm, nullptr);
    case Kind::broadcast:
      return weftBroadcast(in.data(), out.data(), call.count, call.type, call.root, comm, nullptr);
    case Kind::reduce:
      return weftReduce(in.data(), out.data(), call.count, call.type, call.op, call.root, comm, nullptr);
    case Kind::barrier:
      return weftBarrier(comm, nullptr);
    case Kind::all_gather:
      return weftAllGather(in.data(), out.data(), call.count, call.type, comm, nullptr);
  }
  return weftInternalError;
}

class Mismatch : public ::testing::TestWithParam<const char*> {
 protected:
  JobOptions on_transport(int size = 2) const {
    return {.size = size, .environment = {{"WEFT_TRANSPORT", GetParam()}}};
  }
  // After one operation that matches, the last rank calls `last`, all others `most`. Every rank's error shows both.
  void clash(const Called& most, const Called& last, const std::vector<std::string>& named, int size = 2) {
    Job job(on_transport(size), [&](Rank& rank) {
      weftBarrier(rank.comm, nullptr);
      rank.begin();
      rank.keep(issue(rank.rank == rank.size - 1 ? last : most, rank.comm, rank.size));
      // A rank that only had to send has gone through; it finds out, or is told, in the next calls.
      for (int more = 0; more < 2 && rank.report.code == weftSuccess; ++more) {
        rank.keep(weftBarrier(rank.comm, nullptr));
      }
      rank.report.value[0] = weftBarrier(rank.comm, nullptr);
    });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < size; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      expect_error(job[rank], weftInvalidUsage, named);
      EXPECT_EQ(job[rank].value[0], weftInvalidUsage) << "later calls are refused";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(On, Mismatch, ::testing::Values("shm", "tcp"), [](const auto& info) { return info.param; });

constexpr size_t kTenMegabytes = 2'500'000;  // of 4 bytes each

TEST_P(Mismatch, B59_Count) {
  clash({.count = 1000}, {.count = 500}, {"operation 1", "allreduce", "1000", "500", "rank 0", "rank 1"});
}
TEST_P(Mismatch, B59_CountOfTenMegabytes) {
  clash({.count = kTenMegabytes}, {.count = kTenMegabytes / 2},
        {"operation 1", "allreduce", "2500000", "1250000", "rank 0", "rank 1"});
}
TEST_P(Mismatch, B59_SmallAgainstLarge) {
  clash({.count = 10}, {.count = kTenMegabytes}, {"operation 1", "of 10 ", "2500000"});
}
TEST_P(Mismatch, B59_FourRanks) {
  clash({.count = kTenMegabytes}, {.count = 1000}, {"operation 1", "of 1000 ", "2500000", "rank 3"}, 4);
}
TEST_P(Mismatch, B60_Type) {
  clash({.count = 100}, {.count = 100, .type = weftInt32}, {"operation 1", "float,", "int32,"});
  clash({.count = kTenMegabytes}, {.count = kTenMegabytes, .type = weftInt32}, {"operation 1", "float,", "int32,"});
}
TEST_P(Mismatch, B60_Op) {
  clash({.count = 100}, {.count = 100, .op = weftMax}, {"operation 1", "sum", "max"});
  clash({.count = kTenMegabytes}, {.count = kTenMegabytes, .op = weftMax}, {"operation 1", "sum", "max"});
}
TEST_P(Mismatch, B60_RootOfReduce) {
  clash({.kind = Kind::reduce, .count = 100}, {.kind = Kind::reduce, .count = 100, .root = 1},
        {"operation 1", "root 0", "root 1"});
}
TEST_P(Mismatch, B60_RootOfBroadcast) {
  const Called zero{.kind = Kind::broadcast, .count = 100}, one{.kind = Kind::broadcast, .count = 100, .root = 1};
  clash(zero, one, {"operation 1", "root 0", "root 1"});
  clash(zero, one, {"operation 1", "root 0", "root 1"}, 4);
}
TEST_P(Mismatch, B60_RootOfLargeBroadcast) {
  clash({.kind = Kind::broadcast, .count = kTenMegabytes}, {.kind = Kind::broadcast, .count = kTenMegabytes, .root = 1},
        {"operation 1", "root 0", "root 1"});
}
TEST_P(Mismatch, B61_Order) {
  Job job(on_transport(), [&](Rank& rank) {
    rank.begin();
    const Called all_reduce{.count = 100}, barrier{.kind = Kind::barrier};
    const bool first = rank.rank == 0;
    if (rank.keep(issue(first ? all_reduce : barrier, rank.comm, 2)) == weftSuccess) {
      rank.keep(issue(first ? barrier : all_reduce, rank.comm, 2));
    }
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank)
    expect_error(job[rank], weftInvalidUsage, {"operation 0", "allreduce", "barrier"});
}
TEST_P(Mismatch, B61_OtherCollective) {
  clash({.count = kTenMegabytes}, {.kind = Kind::all_gather, .count = 1000}, {"allreduce", "allgather", "operation 1"},
        4);
}
TEST_P(Mismatch, B62_ARankThatSkipsAnOperation) {
  for (const size_t count : {size_t{1000}, kTenMegabytes}) {
    Job job(on_transport(3), [count](Rank& rank) {
      for (int op = 0; op < 5; ++op) weftBarrier(rank.comm, nullptr);
      rank.begin();
      if (rank.rank == 1) {
        rank.wait(0, 2);
        return;
      }
      rank.keep(issue({.count = count}, rank.comm, 3));
      rank.raise(0);
    });
    ASSERT_TRUE(job.finish());
    for (const int rank : {0, 2}) {
      expect_error(job[rank], weftTimeout, {"operation 5", "allreduce of " + std::to_string(count), "rank 1"});
      EXPECT_GE(job[rank].seconds, kTimeout - 0.1);
    }
  }
}
TEST_P(Mismatch, SendAndReceiveOfDifferentLengths) {
  Job job(on_transport(), [](Rank& rank) {
    std::vector<float> data(10000);
    rank.begin();
    if (rank.rank == 0) {
      rank.keep(weftSend(data.data(), 10000, weftFloat32, 1, rank.comm, nullptr));
      if (rank.report.code == weftSuccess) rank.keep(weftBarrier(rank.comm, nullptr));
    } else {
      rank.keep(weftRecv(data.data(), 5000, weftFloat32, 0, rank.comm, nullptr));
    }
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank)
    expect_error(job[rank], weftInvalidUsage, {"point-to-point operation 0", "10000", "5000"});
}
// Neither call is answered. Small sends need no answer: they are done, and nothing is wrong yet.
void face_to_face(const JobOptions& options, bool send) {
  Job job(options, [send](Rank& rank) {
    std::vector<float> data(kTenMegabytes);
    rank.begin();
    const int peer = 1 - rank.rank;
    rank.keep(send ? weftSend(data.data(), data.size(), weftFloat32, peer, rank.comm, nullptr)
                   : weftRecv(data.data(), data.size(), weftFloat32, peer, rank.comm, nullptr));
  });
  ASSERT_TRUE(job.finish());
  const std::string words[] = {send ? "send of 2500000 float to rank 0" : "receive of 2500000 float from rank 0",
                               send ? "send of 2500000 float to rank 1" : "receive of 2500000 float from rank 1"};
  for (int rank = 0; rank < 2; ++rank) expect_error(job[rank], weftTimeout, {words[0], words[1]});
}
TEST(PointToPoint, BothSend) { face_to_face({.size = 2, .environment = {{"WEFT_TRANSPORT", "shm"}}}, true); }
TEST(PointToPoint, BothReceive) { face_to_face({.size = 2, .environment = {{"WEFT_TRANSPORT", "tcp"}}}, false); }

TEST(Setup, B71_NoTransportInCommon) {
  Job job({.of_rank = {{0, {{"WEFT_TRANSPORT", "shm"}}}, {1, {{"WEFT_TRANSPORT", "tcp"}}}}, .join = false},
          [](Rank& rank) { rank.join(); });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    expect_error(job[rank], weftSystemError, {"rank 0", "rank 1", "shm", "tcp", "none in common"});
  }
}
TEST(Setup, B71_TheCommonOneIsTaken) {
  Job job({.of_rank = {{0, {{"WEFT_TRANSPORT", "shm,tcp"}}}, {1, {{"WEFT_TRANSPORT", "tcp"}}}}}, [](Rank& rank) {
    weftResult_t code;
    rank.report.value[0] = all_reduce_is_right(rank.comm, rank.rank, rank.size, 100000, &code);
    rank.keep(code);
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    expect_success(job[rank]);
    EXPECT_TRUE(job[rank].value[0]);
  }
}
TEST(Setup, DifferentSettingsAreRefused) {
  Job job({.of_rank = {{1, {{"WEFT_ALGO", "ring"}}}}, .join = false}, [](Rank& rank) { rank.join(); });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(job[rank].code, weftSuccess);
    EXPECT_NE(std::string(job[rank].message).find("WEFT_ALGO=ring"), std::string::npos) << job[rank].message;
  }
}

}  // namespace
}  // namespace weft::faults
