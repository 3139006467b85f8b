// Communicators made from others: split, shrink.
#include <xxhash.h>

#include <algorithm>

#include "api/handles.hpp"

namespace weft {
namespace {

// The id of a communicator made from another one: its secret, a group number that all members compute.
JobId child_id(const Comm& parent, uint32_t child, uint64_t tag, const std::string& address) {
  JobId id;
  id.secret = parent.secret();
  const uint64_t words[3] = {parent.group(), child, tag};
  id.group = XXH64(words, sizeof words, 0x776566);
  id.address = address;
  return id;
}

// Which ranks have the same colour, in their order, and where the first of them listens.
struct Meeting {
  int rank = 0, size = 0;
  JoinOptions options;
};

// Calls under way go on while the ranks meet: one that comes to this last may have to end them first.
Result<Meeting> meet(weftComm& parent, int color, int key, const Config& config) {
  Comm& comm = *parent.comm;
  const Deadline deadline = init_deadline(config, comm.abort_requested);
  const std::lock_guard one_at_a_time(parent.splitting);
  std::unique_lock lock = comm.engine().visit();
  if (comm.failed()) return comm.status();
  std::shared_ptr<Listener> listener;
  if (color >= 0 && comm.size() > 1) {
    auto opened = Listener::open(config);
    if (!opened.ok()) return opened.status();
    listener = *opened;
  }
  const std::string mine = fmt::format("{} {} {}", color, key, listener == nullptr ? "-" : listener->address());
  auto all = comm.bootstrap().all_gather(mine, deadline, [&](const std::function<void()>& wait) {
    lock.unlock();
    wait();
    lock = comm.engine().visit();
  });
  if (!all.ok()) return all.status();
  const uint32_t child = comm.next_child();
  lock.unlock();

  struct Member {
    int key, rank;
    std::string address;
  };
  std::vector<Member> members;
  for (int rank = 0; rank < comm.size(); ++rank) {
    int their_color = 0, their_key = 0, used = 0;
    const std::string& text = (*all)[static_cast<size_t>(rank)];
    if (std::sscanf(text.c_str(), "%d %d %n", &their_color, &their_key, &used) != 2) {
      return error(weftRemoteError, "rank {} took part in weftCommSplit with something not understood", rank);
    }
    if (their_color == color) members.push_back({their_key, rank, text.substr(static_cast<size_t>(used))});
  }
  std::stable_sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.key < b.key; });
  Meeting meeting;
  meeting.size = static_cast<int>(members.size());
  while (members[static_cast<size_t>(meeting.rank)].rank != comm.rank()) ++meeting.rank;
  meeting.options.id = child_id(comm, child, static_cast<uint64_t>(color), members[0].address);
  if (meeting.rank == 0) meeting.options.listener = std::move(listener);
  return meeting;
}

Status split(weftComm* parent, int color, int key, weftComm** to, const weftConfig_t* config) {
  if (to == nullptr) return error(weftInvalidArgument, "newcomm is NULL");
  *to = nullptr;
  WEFT_RETURN_IF_ERROR(check_ready(parent));
  if (color < 0 && color != WEFT_SPLIT_NOCOLOR) {
    return error(weftInvalidArgument, "color={}; legal: 0 or more, or WEFT_SPLIT_NOCOLOR", color);
  }
  auto handle = std::make_unique<weftComm>();
  std::string label;
  handle->blocking = parent->blocking;
  auto merged = merged_config(parent->comm->config(), config, &label, &handle->blocking);
  if (!merged.ok()) return merged.status();
  if (color == WEFT_SPLIT_NOCOLOR) {
    const auto only_meet = [parent, key, merged = *merged] { return meet(*parent, -1, key, merged).status(); };
    if (!in_group()) return only_meet();
    defer(parent, only_meet);
    return {};
  }
  const bool known = in_group() || !handle->blocking;  // the handle, to one who would abort what it stands for
  const auto make = [parent, color, key, known, merged = *merged, label](weftComm& made) -> Status {
    auto met = meet(*parent, color, key, merged);
    if (!met.ok()) return met.status();
    made.rank = met->rank;
    made.size = met->size;
    return bring_up(made, [&made, parent, known, options = std::move(met->options), merged, label]() mutable {
      options.deadline = init_deadline(merged, known ? made.abort_requested : parent->comm->abort_requested);
      return join_and_create(made, options, merged, label);
    });
  };
  return start(parent, std::move(handle), make, to);
}

// Which ranks are left out, by rank.
Result<std::vector<bool>> excluded_ranks(const Comm& comm, const int* list, int count) {
  if (count < 0 || count > comm.size()) {
    return error(weftInvalidArgument, "excludeRanksCount={}; legal: 0 to {}", count, comm.size());
  }
  if (count > 0 && list == nullptr) return error(weftInvalidArgument, "excludeRanksList is NULL");
  std::vector<bool> out(static_cast<size_t>(comm.size()));
  for (int i = 0; i < count; ++i) {
    if (list[i] < 0 || list[i] >= comm.size() || list[i] == comm.rank()) {
      return error(weftInvalidArgument, "excludeRanksList[{}]={}; legal: 0 to {}, but not the caller's own {}", i,
                   list[i], comm.size() - 1, comm.rank());
    }
    out[static_cast<size_t>(list[i])] = true;
  }
  return out;
}

Status shrink(weftComm* parent, const int* excluded, int count, weftComm** to, const weftConfig_t* config, int flags) {
  if (to == nullptr) return error(weftInvalidArgument, "newcomm is NULL");
  *to = nullptr;
  WEFT_RETURN_IF_ERROR(check_ready(parent));
  Comm& comm = *parent->comm;
  if ((flags & ~WEFT_SHRINK_ABORT) != 0) {
    return error(weftInvalidArgument, "shrinkFlags={:#x}; legal: WEFT_SHRINK_DEFAULT, WEFT_SHRINK_ABORT", flags);
  }
  auto out = excluded_ranks(comm, excluded, count);
  if (!out.ok()) return out.status();
  auto handle = std::make_unique<weftComm>();
  std::string label;
  handle->blocking = parent->blocking;
  auto merged = merged_config(comm.config(), config, &label, &handle->blocking);
  if (!merged.ok()) return merged.status();
  if (flags & WEFT_SHRINK_ABORT) {
    comm.abort_requested.store(true);
    comm.engine().wake();
    const auto lock = comm.engine().visit();
    comm.fail(error(weftAborted, "weftCommShrink ended what was in flight"), false);
  }
  std::vector<int> members;
  uint64_t tag = 0x736872696e6b;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if ((*out)[static_cast<size_t>(rank)]) continue;
    members.push_back(rank);
    tag = XXH64(&rank, sizeof rank, tag);
  }
  const std::string address = comm.spare_addresses()[static_cast<size_t>(members[0])];
  if (members.size() > 1 && address.empty()) {
    return error(weftSystemError, "rank {}, the lowest that remains, has nowhere to be met", members[0]);
  }
  handle->size = static_cast<int>(members.size());
  handle->rank = static_cast<int>(std::find(members.begin(), members.end(), comm.rank()) - members.begin());
  handle->placed = true;
  // Numbered by the excluded ranks alone: ranks that failed may not have counted the same children. The listener stays,
  // for a second try when more ranks are found to be gone.
  JoinOptions options{.id = child_id(comm, UINT32_MAX, tag, address), .keep_listening = true};
  if (handle->rank == 0) options.listener = comm.spare_listener();
  const auto make = [options, merged = *merged, label](weftComm& made) {
    return bring_up(made, [&made, options, merged, label]() mutable {
      options.deadline = init_deadline(merged, made.abort_requested);
      return join_and_create(made, options, merged, label);
    });
  };
  return start(parent, std::move(handle), make, to);
}

}  // namespace
}  // namespace weft

using weft::guarded;

extern "C" {

weftResult_t weftCommSplit(weftComm_t comm, int color, int key, weftComm_t* newcomm, weftConfig_t* config) {
  return guarded(comm, [&] { return weft::split(comm, color, key, newcomm, config); });
}

weftResult_t weftCommShrink(weftComm_t comm, int* excludeRanksList, int excludeRanksCount, weftComm_t* newcomm,
                            weftConfig_t* config, int shrinkFlags) {
  return guarded(comm,
                 [&] { return weft::shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags); });
}

}  // extern "C"
