// The storm: a random script of calls, the same on every rank, in which everything happens at once. Each rank decides
// for itself what is its own affair: which stream, when to wait, when to be late. No script can stand still, since
// every thread makes its calls in the script's order.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "case.hpp"

namespace weft::testing {
namespace {

using reference::Pattern;
using Random = std::mt19937_64;

template <typename List>
auto pick(const List& list, Random& random) {
  return list[random() % std::size(list)];
}

bool one_in(uint64_t many, Random& random) { return random() % many == 0; }

// ---- The script

// A communicator: its ranks, by their numbers in the world.
struct Circle {
  std::vector<int> members;
  int owner = 0;       // the thread that makes its collectives; messages are made by all
  bool blocks = true;  // false: a call returns at once; then only its owner uses it
  int rank_of(int world) const {
    const auto at = std::find(members.begin(), members.end(), world);
    return at == members.end() ? -1 : static_cast<int>(at - members.begin());
  }
};

// A split of the world, by all of its ranks: colour and key of each, and the circle of each colour.
struct Division {
  std::vector<int> colors, keys;
  std::vector<size_t> circles;
  bool blocks = true;
};

struct Share {  // one of the calls that are made together
  size_t circle;
  std::unique_ptr<Expectation> expectation;
};

// Calls, made together where there are several; or the end of a division and a new one in its place.
struct Step {
  std::vector<Share> shares;
  std::optional<std::pair<Division, Division>> redivide;
};

struct Script {
  int ranks = 2;
  size_t threads = 1;
  uint64_t seed = 0;
  Variables variables;
  std::vector<Circle> circles;           // the first is the world
  std::vector<Division> divisions;       // made at the beginning; the first thread's can change
  std::vector<std::vector<Step>> steps;  // by thread
  // A rank that aborts all its communicators, or dies; its thread, and the step before which it does.
  struct End {
    int rank;
    size_t thread, step;
    bool dies;
  };
  std::optional<End> end;
};
enum class Ending { none, abort, death };

class Author {
 public:
  Author(int ranks, const char* transport, uint64_t seed, size_t steps, Ending ending = Ending::none) : random_(seed) {
    script_.ranks = ranks;
    script_.seed = seed;
    script_.threads = 1 + random_() % 3;
    choose_variables(transport);
    Circle world{std::vector<int>(static_cast<size_t>(ranks)), 0, true};
    std::iota(world.members.begin(), world.members.end(), 0);
    script_.circles.push_back(world);
    for (size_t division = 0; division < 3; ++division) script_.divisions.push_back(divide(division));
    for (size_t thread = 0; thread < script_.threads; ++thread) {
      script_.steps.emplace_back();
      if (ending != Ending::none) {
        script_.end = {static_cast<int>(random_() % static_cast<size_t>(ranks)), random_() % (thread + 1),
                       random_() % steps, ending == Ending::death};
      }
      Division current = script_.divisions[0];
      for (size_t i = 0; i < steps; ++i) script_.steps[thread].push_back(step(thread, current));
    }
  }
  Script take() { return std::move(script_); }

 private:
  void choose_variables(const char* transport) {
    wide_ = one_in(4, random_);
    script_.variables = {
        {"WEFT_TRANSPORT", transport},
        {"WEFT_TILE", pick(std::vector<const char*>{"1K", "4K", "20000", "0"}, random_)},
        {"WEFT_WINDOW", pick(std::vector<const char*>{"0", "1", "3", "8"}, random_)},
        {"WEFT_ACCUM", wide_ ? "wide" : "narrow"},
        {"WEFT_SHM_RING", pick(std::vector<const char*>{"64K", "512K"}, random_)},
        {"WEFT_SHM_CMA", pick(std::vector<const char*>{"0", "1", "1"}, random_)},
        {"WEFT_TCP_STREAMS", pick(std::vector<const char*>{"1", "2", "5"}, random_)},
        {"WEFT_SPIN", pick(std::vector<const char*>{"-1", "0", "200"}, random_)},
    };
    std::string algo;
    for (const ProgramPtr& program : builtin_programs()) {
      if (!one_in(3, random_) || forced_.contains(program->collective())) continue;
      forced_[program->collective()] = program;
      algo += fmt::format("{}{}:{}", algo.empty() ? "" : ",", name_of(program->collective()), program->name());
    }
    script_.variables.emplace_back("WEFT_ALGO", algo);
  }

  // 0: two or three parts, which may change later. 1: all, in another order. 2: all again, and calls return at once.
  Division divide(size_t kind) {
    Division division;
    const auto ranks = static_cast<size_t>(script_.ranks);
    const size_t colors = kind == 0 ? 2 + random_() % 2 : 1;
    for (size_t rank = 0; rank < ranks; ++rank) {
      division.colors.push_back(static_cast<int>(random_() % colors));
      division.keys.push_back(static_cast<int>(random_() % 3));
    }
    division.blocks = kind != 2;
    for (size_t color = 0; color < colors; ++color) {
      Circle circle;
      circle.owner = static_cast<int>(kind % script_.threads);
      circle.blocks = division.blocks;
      for (int rank = 0; rank < script_.ranks; ++rank) {
        if (division.colors[static_cast<size_t>(rank)] == static_cast<int>(color)) circle.members.push_back(rank);
      }
      std::stable_sort(circle.members.begin(), circle.members.end(), [&](int a, int b) {
        return division.keys[static_cast<size_t>(a)] < division.keys[static_cast<size_t>(b)];
      });
      division.circles.push_back(script_.circles.size());
      script_.circles.push_back(circle);
    }
    return division;
  }

  Step step(size_t thread, Division& current) {
    Step step;
    if (thread == 0 && !script_.end.has_value() && one_in(25, random_)) {
      Division next = divide(0);
      step.redivide.emplace(current, next);
      current = next;
      return step;
    }
    std::vector<size_t> usable{0, script_.divisions[1].circles[0], script_.divisions[2].circles[0]};
    if (thread == 0) usable.insert(usable.end(), current.circles.begin(), current.circles.end());
    const size_t many = one_in(3, random_) ? 2 + random_() % 5 : 1;
    while (step.shares.size() < many) {
      const size_t at = pick(usable, random_);
      const Circle& circle = script_.circles[at];
      const bool owns = circle.owner == static_cast<int>(thread);
      if (circle.members.empty() || (!owns && !circle.blocks)) continue;
      std::optional<Case> call =
          owns && !one_in(3, random_) ? collective(circle) : message(circle, at, thread, many > 1);
      if (!call.has_value()) continue;
      const auto forced = forced_.find(call->collective);
      const bool known = forced != forced_.end() && forced->second->supports(call->ranks);
      if (!known) call->pattern = reduces(call->collective) ? Pattern::kExact : Pattern::kBits;
      step.shares.push_back({at, std::make_unique<Expectation>(*call, known ? forced->second.get() : nullptr)});
    }
    return step;
  }

  Case basic(const Circle& circle) {
    Case call;
    call.ranks = static_cast<int>(circle.members.size());
    call.type = static_cast<weftDataType_t>(random_() % weftNumTypes);
    call.op = static_cast<weftRedOp_t>(random_() % (weftNumOps + 1));
    call.wide = wide_;
    call.pattern = pick(std::vector<Pattern>{Pattern::kBits, Pattern::kFinite, Pattern::kExact}, random_);
    const uint64_t size = random_() % 10;
    call.count = size < 5 ? random_() % 40 : size < 9 ? random_() % 3000 : random_() % 30000;
    call.in_place = one_in(2, random_) ? static_cast<uint32_t>(random_()) : 0;
    call.seed = random_();
    call.shared_memory = one_in(6, random_);
    return call;
  }

  Case collective(const Circle& circle) {
    Case call = basic(circle);
    do {
      call.collective = static_cast<Collective>(random_() % kCollectives);
    } while (call.collective == Collective::sendrecv);
    call.root = static_cast<int>(random_() % circle.members.size());
    return call;
  }

  // What goes from one rank to another is always of one thread: others would mix up the order. To oneself in a group.
  std::optional<Case> message(const Circle& circle, size_t at, size_t thread, bool grouped) {
    Case call = basic(circle);
    call.collective = Collective::sendrecv;
    call.pattern = Pattern::kBits;
    call.root = static_cast<int>(random_() % circle.members.size());
    call.peer = static_cast<int>(random_() % circle.members.size());
    if (call.root == call.peer && !grouped) return std::nullopt;
    const bool shared = circle.blocks && (at == 0 || at == script_.divisions[1].circles[0]);
    if (shared && static_cast<size_t>(call.root + 2 * call.peer) % script_.threads != thread) return std::nullopt;
    return call;
  }

  Random random_;
  Script script_;
  std::map<Collective, ProgramPtr> forced_;
  bool wide_ = false;
};

// ---- The performance

class Actor {
 public:
  Actor(const Script& script, int rank, size_t thread, const std::vector<weftComm_t>& comms)
      : script_(script),
        rank_(rank),
        thread_(thread),
        comms_(comms),
        random_(script.seed * 1000 + static_cast<uint64_t>(rank) * 10 + thread),
        streams_(random_() % 4),
        pending_(streams_.size() + 1) {
    for (weftStream_t& stream : streams_) WEFT_EXPECT_OK(weftStreamCreate(&stream), nullptr);
  }

  ~Actor() {
    finish();
    for (weftStream_t stream : streams_) WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
  }
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  void run(std::vector<weftComm_t>& mine) {
    open_window();
    const auto& steps = script_.steps[thread_];
    for (const Step& step : steps) {
      const auto number = static_cast<size_t>(&step - steps.data());
      const auto& end = script_.end;
      if (end.has_value() && end->rank == rank_ && end->thread == thread_ && end->step == number) {
        end->dies ? static_cast<void>(::raise(SIGKILL)) : abort_all();
      }
      if (one_in(20, random_)) ::usleep(static_cast<useconds_t>(random_() % 3000));
      if (step.redivide.has_value()) {
        redivide(step, mine);
      } else {
        make_calls(step);
      }
      if (!well_) break;  // it has failed
      if (one_in(4, random_)) wait_for(random_() % pending_.size());
      if (pending_count_ > 20) finish();
    }
    if (!well_ && script_.end.has_value()) abort_all();
    finish();
    close_window();
  }

 private:
  struct Flight {
    weftComm_t comm;
    Part part;
  };

  weftComm_t comm_of(size_t circle) const { return comms_[circle]; }
  void note(weftResult_t result, weftComm_t comm, const std::string& what) {
    if (result == weftSuccess) return;
    const bool expected = script_.end.has_value() && (result == weftAborted || result == weftRemoteError);
    if (!expected) ADD_FAILURE() << why(result, comm) << "\n  in " << what;
    well_ = false;
  }

  // All that others may wait for this thread in.
  void abort_all() {
    std::vector<size_t> circles{0, script_.divisions[1].circles[0], script_.divisions[2].circles[0]};
    if (thread_ == 0)
      circles.insert(circles.end(), script_.divisions[0].circles.begin(), script_.divisions[0].circles.end());
    for (const size_t circle : circles) {
      if (comms_[circle] != nullptr) {
        WEFT_EXPECT_OK(weftCommAbort(comms_[circle]), comms_[circle]);
      }
    }
  }

  void make_calls(const Step& step) {
    std::vector<const Share*> shares;
    for (const Share& share : step.shares) {
      const Case& call = share.expectation->call();
      const int rank = script_.circles[share.circle].rank_of(rank_);
      const bool takes_part =
          call.collective == Collective::sendrecv ? rank == call.root || rank == call.peer : rank >= 0;
      if (rank >= 0 && takes_part) shares.push_back(&share);
    }
    // The order of calls matters within a communicator alone.
    const uint64_t salt = random_();
    std::stable_sort(shares.begin(), shares.end(), [salt](const Share* a, const Share* b) {
      return (a->circle * 0x9e3779b97f4a7c15u ^ salt) % 7 < (b->circle * 0x9e3779b97f4a7c15u ^ salt) % 7;
    });
    if (shares.empty()) return;
    const bool group = step.shares.size() > 1;
    std::vector<Flight> blocking;
    bool at_once = false;
    if (group) note(weftGroupStart(), nullptr, "weftGroupStart");
    for (const Share* share : shares) {
      const Circle& circle = script_.circles[share->circle];
      weftComm_t comm = comm_of(share->circle);
      Part part(*share->expectation, circle.rank_of(rank_), one_in(4, random_) ? &*arena_ : nullptr);
      const size_t on = random_() % pending_.size();
      weftResult_t result = part.issue(comm, on == streams_.size() ? nullptr : streams_[on]);
      const bool own_stream = on == streams_.size() && !circle.blocks;
      if (own_stream && result == weftInProgress) result = weftSuccess;
      note(result, comm, part.what());
      if (on < streams_.size() || own_stream) {
        pending_[on].push_back({comm, std::move(part)});
        ++pending_count_;
      } else {
        blocking.push_back({comm, std::move(part)});
      }
      at_once = at_once || own_stream;
    }
    if (group) {
      weftResult_t result = weftGroupEnd();
      if (at_once && result == weftInProgress) result = weftSuccess;
      note(result, nullptr, "weftGroupEnd");
    }
    if (well_) {
      for (const Flight& flight : blocking) flight.part.check();
    }
    // Where it failed: its memory may go only when nothing of it is in flight, which a failed communicator guarantees.
  }

  // Everything on a stream, or, with the last number, on communicators that do not block.
  void wait_for(size_t on) {
    if (on < streams_.size()) {
      note(weftStreamSynchronize(streams_[on]), nullptr, "weftStreamSynchronize");
    } else {
      for (const Flight& flight : pending_[on]) {
        weftResult_t state = weftInProgress;
        while (weftCommGetAsyncError(flight.comm, &state) == weftSuccess && state == weftInProgress) ::usleep(50);
        note(state, flight.comm, flight.part.what());
      }
    }
    if (well_) {
      for (const Flight& flight : pending_[on]) flight.part.check();
    }
    pending_count_ -= pending_[on].size();
    pending_[on].clear();
  }

  void finish() {
    for (size_t on = 0; on < pending_.size(); ++on) wait_for(on);
    if (arena_.has_value()) {
      EXPECT_TRUE(arena_->give_back()) << "rank " << rank_ << ": bytes around buffers in a window were written";
    }
  }

  void redivide(const Step& step, std::vector<weftComm_t>& mine) {
    const auto& [before, after] = *step.redivide;
    const auto me = static_cast<size_t>(rank_);
    weftComm_t& old = mine[before.circles[static_cast<size_t>(before.colors[me])]];
    if (one_in(2, random_)) note(weftCommFinalize(old), old, "weftCommFinalize");
    note(weftCommDestroy(old), nullptr, "weftCommDestroy");
    old = nullptr;
    weftComm_t fresh = nullptr;
    note(weftCommSplit(mine[0], after.colors[me], after.keys[me], &fresh, nullptr), mine[0], "weftCommSplit");
    mine[after.circles[static_cast<size_t>(after.colors[me])]] = fresh;
  }

  // A window over memory that other processes can map, or cannot. By the thread that makes the collectives.
  void open_window() {
    constexpr size_t kBytes = 1 << 20;
    if (one_in(2, random_)) {
      note(weftMemAlloc(&window_memory_, kBytes), nullptr, "weftMemAlloc");
    } else {
      private_.resize(kBytes);
    }
    void* memory = window_memory_ != nullptr ? window_memory_ : private_.data();
    arena_.emplace(memory, kBytes);
    if (thread_ == 0) {
      note(weftCommWindowRegister(comms_[0], memory, kBytes, &window_, WEFT_WIN_DEFAULT), comms_[0], "registration");
    }
  }
  void close_window() {
    if (window_ != nullptr) note(weftCommWindowDeregister(comms_[0], window_), comms_[0], "deregistration");
    arena_.reset();
    if (window_memory_ != nullptr) note(weftMemFree(window_memory_), nullptr, "weftMemFree");
  }

  const Script& script_;
  const int rank_;
  const size_t thread_;
  const std::vector<weftComm_t>& comms_;
  Random random_;
  std::vector<weftStream_t> streams_;
  std::vector<std::vector<Flight>> pending_;  // by stream; then what is on communicators that do not block
  size_t pending_count_ = 0;
  std::vector<std::byte> private_;
  void* window_memory_ = nullptr;
  weftWindow_t window_ = nullptr;
  std::optional<Arena> arena_;
  bool well_ = true;
};

void wait_until_ready(weftComm_t comm) {
  weftResult_t state = weftInProgress;
  while (weftCommGetAsyncError(comm, &state) == weftSuccess && state == weftInProgress) ::usleep(200);
  EXPECT_EQ(state, weftSuccess) << weftGetLastError(comm);
}

// One rank, from the making of its communicators to their end, which comes in any order and without waiting for others.
void perform(const Script& script, int rank, weftComm_t world) {
  std::vector<weftComm_t> comms(script.circles.size());
  comms[0] = world;
  for (const Division& division : script.divisions) {
    const auto me = static_cast<size_t>(rank);
    weftComm_t& part = comms[division.circles[static_cast<size_t>(division.colors[me])]];
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.blocking = division.blocks ? 1 : 0;
    const weftResult_t made = weftCommSplit(world, division.colors[me], division.keys[me], &part, &config);
    ASSERT_TRUE(made == weftSuccess || (made == weftInProgress && !division.blocks)) << why(made, world);
    wait_until_ready(part);
  }
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < script.threads; ++thread) {
    threads.emplace_back([&, thread] { Actor(script, rank, thread, comms).run(comms); });
  }
  for (std::thread& thread : threads) thread.join();
  Random random(script.seed + static_cast<uint64_t>(rank));
  std::shuffle(comms.begin() + 1, comms.end(), random);
  for (size_t i = 1; i < comms.size(); ++i) {
    if (comms[i] != nullptr) {
      WEFT_EXPECT_OK(weftCommDestroy(comms[i]), nullptr);
    }
  }
}

// ---- The stage

struct Plane {
  const char* name;
  Mode mode;
  const char* transport;
};
void PrintTo(const Plane& plane, std::ostream* out) { *out << plane.name; }

class Storm : public ::testing::TestWithParam<Plane> {};

INSTANTIATE_TEST_SUITE_P(Transports, Storm,
                         ::testing::Values(Plane{"ThreadsLoop", Mode::threads, "loop"},
                                           Plane{"ThreadsShm", Mode::threads, "shm"},
                                           Plane{"ThreadsTcp", Mode::threads, "tcp"},
                                           Plane{"ProcessesShm", Mode::processes, "shm"},
                                           Plane{"ProcessesTcp", Mode::processes, "tcp"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Storm, EveryResultIsRight) {
  const Plane& plane = GetParam();
  const uint64_t scripts = test_full() ? 25 : 1;
  const bool brief = sanitized() && !test_full();
  const size_t steps = brief ? 40 : 120;
  for (uint64_t i = 0; i < scripts; ++i) {
    for (const int ranks : brief ? std::vector{2, 5} : std::vector{2, 3, 5, 7}) {
      const uint64_t seed = test_seed() + i * 1000;
      const Script script = Author(ranks, plane.transport, seed * 8 + static_cast<uint64_t>(ranks), steps).take();
      std::string environment;
      for (const auto& [name, value] : script.variables) environment += name + "=" + value + " ";
      SCOPED_TRACE(
          fmt::format("WEFT_TEST_SEED={}, {} ranks of {} threads, {}", seed, ranks, script.threads, environment));
      run_ranks(
          plane.mode, ranks, [&script](int rank, weftComm_t world) { perform(script, rank, world); }, script.variables);
      if (HasFailure()) return;
    }
  }
}

// A rank aborts or dies in the midst of it, and everything ends: no call hangs, none gives a wrong result, and no
// memory is touched once its call has ended.
void end_in_the_midst(const Plane& plane, Ending ending) {
  const uint64_t scripts = test_full() ? 200 : sanitized() ? 2 : 6;
  for (uint64_t i = 0; i < scripts; ++i) {
    const uint64_t seed = test_seed() + i;
    const int ranks = 2 + static_cast<int>(i % 3);
    const Script script = Author(ranks, plane.transport, seed, 25, ending).take();
    SCOPED_TRACE(fmt::format("WEFT_TEST_SEED={}, {} ranks of {} threads", seed, ranks, script.threads));
    const RankBody body = [&script](int rank, weftComm_t world) { perform(script, rank, world); };
    if (ending == Ending::death) {
      run_processes(ranks, body, script.variables, {script.end->rank});
    } else {
      run_ranks(plane.mode, ranks, body, script.variables);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(Storm, EndsWithAnAbort) { end_in_the_midst(GetParam(), Ending::abort); }

TEST_P(Storm, EndsWithADeath) {
  if (GetParam().mode == Mode::threads) GTEST_SKIP() << "a thread cannot die alone";
  end_in_the_midst(GetParam(), Ending::death);
}

}  // namespace
}  // namespace weft::testing
