// weft.hpp on thread ranks: every call once with the right answer, and every size that does not fit refused by name.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

#include "weft/weft.hpp"

namespace {

using Sizes = std::vector<std::size_t>;

// Runs work(communicator, rank) on `ranks` threads and fails the test on an exception.
void on_ranks(int ranks, const std::function<void(weft::Communicator&, int)>& work) {
  std::vector<std::thread> threads;
  for (weft::Communicator& comm : weft::Communicator::all(ranks))
    threads.emplace_back([&work, comm = std::move(comm)]() mutable {
      try {
        work(comm, comm.rank());
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
        weftCommAbort(comm.raw());
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Hpp, Collectives) {
  on_ranks(3, [](weft::Communicator& comm, int r) {
    std::vector<int> one{r + 1}, three(3), out(1);
    comm.all_reduce(one, out);
    EXPECT_EQ(out[0], 6);
    comm.all_reduce(out, weftMax);
    EXPECT_EQ(out[0], 6);
    comm.all_gather(one, three);
    EXPECT_EQ(three, (std::vector<int>{1, 2, 3}));
    std::vector<int> place(3);
    place[static_cast<std::size_t>(r)] = 10 * r;
    comm.all_gather(place);
    EXPECT_EQ(place, (std::vector<int>{0, 10, 20}));
    comm.reduce_scatter(three, out);
    EXPECT_EQ(out[0], 3 * (r + 1));
    EXPECT_EQ(comm.reduce_scatter(three)[0], 3 * (r + 1));
    std::vector<int> blocks{10 * r, 10 * r + 1, 10 * r + 2}, swapped(3);
    comm.all_to_all(blocks, swapped);
    EXPECT_EQ(swapped, (std::vector<int>{r, 10 + r, 20 + r}));
    comm.all_to_all(swapped);
    EXPECT_EQ(swapped, blocks);
    comm.reduce(one, out, 1);
    if (r == 1) {
      EXPECT_EQ(out[0], 6);
    }
    std::vector<int> sent{r == 2 ? 7 : 0};
    comm.broadcast(sent, 2);
    EXPECT_EQ(sent[0], 7);
    std::vector<int> gathered(r == 0 ? 3 : 0);  // not used, and not there, at the others
    comm.gather(one, gathered, 0);
    if (r == 0) {
      EXPECT_EQ(gathered, (std::vector<int>{1, 2, 3}));
    }
    comm.scatter(gathered, out, 0);
    EXPECT_EQ(out[0], r + 1);
    comm.barrier();
  });
}

TEST(Hpp, VVariants) {
  on_ranks(2, [](weft::Communicator& comm, int r) {
    Sizes counts{1, 2}, displs{0, 1};
    std::vector<float> mine(counts[static_cast<std::size_t>(r)], static_cast<float>(r + 1)), all(3);
    comm.all_gather_v(mine, all, counts, displs);
    EXPECT_EQ(all, (std::vector<float>{1, 2, 2}));
    comm.reduce_scatter_v(all, counts, displs, mine);
    EXPECT_EQ(mine[0], r == 0 ? 2.0f : 4.0f);
    std::vector<float> gathered(r == 1 ? 3 : 0);
    comm.gather_v(mine, gathered, counts, displs, 1);
    if (r == 1) {
      EXPECT_EQ(gathered, (std::vector<float>{2, 4, 4}));
    }
    comm.scatter_v(gathered, counts, displs, mine, 1);
    EXPECT_EQ(mine[0], r == 0 ? 2.0f : 4.0f);
    // Rank 0 sends one element to rank 1 and nothing else moves; the displacement of an empty block is never read.
    Sizes none{0, 0}, to_1{0, 1}, from_0{1, 0}, far{1000000000, 0}, start{0, 1000000000};
    std::vector<float> got(1, -1);
    comm.all_to_all_v(mine, r == 0 ? to_1 : none, far, got, r == 0 ? none : from_0, start);
    EXPECT_EQ(got[0], r == 0 ? -1.0f : 2.0f);
  });
}

TEST(Hpp, StreamsGroupsAndMemory) {
  on_ranks(2, [](weft::Communicator& comm, int r) {
    weft::Buffer<double> buffer(1000);
    std::fill(buffer.begin(), buffer.end(), r + 1);
    weft::Buffer<double> moved = std::move(buffer);
    EXPECT_EQ(buffer.data(), nullptr);  // NOLINT: moved from, on purpose
    weft::Window window(comm, moved);
    weft::Stream stream;
    comm.all_reduce(moved, weftSum, stream);
    comm.all_reduce(moved, weftSum, stream);
    stream.synchronize();
    EXPECT_TRUE(stream.idle());
    EXPECT_EQ(moved[999], 6);
    std::vector<int> out{r}, in(1);
    weft::Registration registration(comm, out);
    weft::Group group;
    comm.send(out, 1 - r);
    comm.recv(in, 1 - r);
    group.end();
    EXPECT_EQ(in[0], 1 - r);
    std::vector<float> x{1};
    weft::PreMulSum<float> weighted(comm, static_cast<float>(r + 2));
    comm.all_reduce(x, weighted);
    EXPECT_EQ(x[0], 5);
  });
}

// In a group the communicators are owned before they are made.
TEST(Hpp, JoinAndSplitInAGroup) {
  const weftUniqueId id = weft::make_unique_id();
  std::vector<weft::Communicator> comms, parts;
  {
    weft::Group group;
    for (int r = 0; r < 2; ++r) comms.push_back(weft::Communicator::join(id, 2, r));
    group.end();
  }
  {
    weft::Group group;
    for (int r = 0; r < 2; ++r) parts.push_back(comms[static_cast<size_t>(r)].split(0, -r));
    group.end();
  }
  for (int r = 0; r < 2; ++r) EXPECT_EQ(parts[static_cast<size_t>(r)].rank(), 1 - r);
}

TEST(Hpp, CommunicatorsSplitAndTell) {
  on_ranks(3, [](weft::Communicator& comm, int r) {
    weft::Communicator part = comm.split(r == 2 ? WEFT_SPLIT_NOCOLOR : 0, -r);
    EXPECT_EQ(static_cast<bool>(part), r != 2);
    if (part) {
      EXPECT_EQ(part.size(), 2);
      EXPECT_EQ(part.rank(), 1 - r);
    }
    comm.barrier();
    EXPECT_EQ(comm.async_error(), weftSuccess);
    EXPECT_GT(comm.stats().operations, 0u);
    EXPECT_NE(comm.dump().find('{'), std::string::npos);
    comm.set_timeout(std::chrono::seconds(10));
  });
}

// What the range overloads refuse, before anything is sent: the message names call, sizes and need.
TEST(Hpp, WrongSizesAreNamed) {
  on_ranks(2, [](weft::Communicator& comm, int) {
    std::vector<int> three(3), two(2), one(1);
    Sizes counts{2, 2}, displs{0, 2}, short_list{1};
    auto refused = [](const std::function<void()>& call, const std::string& said) {
      try {
        call();
        ADD_FAILURE() << "not refused: " << said;
      } catch (const weft::Error& e) {
        EXPECT_EQ(e.code(), weftInvalidArgument);
        EXPECT_NE(std::string(e.what()).find(said), std::string::npos) << e.what();
      }
    };
    refused([&] { comm.all_reduce(three, two); }, "all_reduce: recv has 2 elements and must have 3");
    refused([&] { comm.all_gather(two, three); }, "all_gather: recv has 3 elements and must have 4");
    refused([&] { comm.all_gather(three); }, "3 elements cannot be shared out to 2 ranks");
    refused([&] { comm.reduce_scatter(three, one); }, "reduce_scatter: send has 3 elements and must have 2");
    refused([&] { comm.all_to_all(three, three); }, "all_to_all");
    refused([&] { comm.all_gather_v(two, three, counts, displs); },
            "block 1, 2 elements from 2, does not lie inside recv of 3");
    refused([&] { comm.all_gather_v(two, three, short_list, displs); }, "1 counts and 2 displacements for 2 ranks");
    comm.all_reduce(one);  // and the communicator is none the worse
  });
}

TEST(Hpp, ErrorsCarryCodeAndSentence) {
  on_ranks(1, [](weft::Communicator& comm, int) {
    std::vector<int> x(1);
    try {
      comm.broadcast(x, 5);
      ADD_FAILURE() << "root 5 of 1 was taken";
    } catch (const weft::Error& e) {
      EXPECT_EQ(e.code(), weftInvalidArgument);
      EXPECT_NE(std::string(e.what()).find("5"), std::string::npos) << e.what();
    }
  });
  weft::Config config;
  config.transport = "pigeon";
  EXPECT_THROW(weft::Communicator::from_env(config), weft::Error);
}

static_assert(weft::type_of<long> == weftInt64 && weft::type_of<long long> == weftInt64);
static_assert(weft::type_of<std::byte> == weftUint8 && weft::type_of<weft::bfloat16> == weftBfloat16);
static_assert(!weft::Element<bool> && !weft::Element<short> && !weft::Element<std::string>);
static_assert(!std::is_copy_constructible_v<weft::Communicator> && std::is_nothrow_move_constructible_v<weft::Stream>);

}  // namespace
