#include "comm/watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "comm/comm.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

// How long a wire's trouble waits for the control plane to name its cause.
constexpr milliseconds kReasonWait{1000};

// "S <sequence> <signature> <waiting for> <peer> <sends>\n<text>": a stalled operation. "E <code>\n<text>": the
// sender's end.
std::string pack(const Doing& doing) {
  return fmt::format("S {} {} {} {} {}\n{}", doing.sequence, doing.signature, doing.waiting_for, doing.peer,
                     doing.sends ? 1 : 0, doing.text);
}

bool read_number(std::string_view* text, int64_t* number) {
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (problem != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  if (!text->empty()) text->remove_prefix(1);  // the blank or line end
  return true;
}

}  // namespace

Watch::Watch(Comm& comm)
    : comm_(comm),
      words_(static_cast<size_t>(comm.size())),
      lost_(static_cast<size_t>(comm.size())),
      left_(static_cast<size_t>(comm.size())) {}

std::string Watch::name(uint32_t sequence) const {
  if (sequence & MessageId::kPointToPoint) {
    return fmt::format("point-to-point operation {}", sequence & ~MessageId::kPointToPoint);
  }
  return fmt::format("operation {}", sequence);
}

Status Watch::compare(int from, const Doing& theirs, const Doing* doing) {
  const bool pair = (theirs.sequence & MessageId::kPointToPoint) != 0;
  if (pair && theirs.peer != comm_.rank()) return {};
  std::optional<Doing> mine;
  if (doing != nullptr && doing->sequence == theirs.sequence &&
      (!pair || (doing->peer == from && doing->sends != theirs.sends))) {
    mine = *doing;
  } else {
    mine = pair ? comm_.engine().past_pair(theirs.sequence, from, !theirs.sends) : comm_.engine().past(theirs.sequence);
  }
  if (!mine.has_value() || mine->signature == theirs.signature) return {};
  if (said_sequence_ != mine->sequence) say(*mine);  // so that they can tell, too
  return error(weftInvalidUsage, "the ranks' calls do not match at {}: rank {} called {}, rank {} called {}",
               name(mine->sequence), comm_.rank(), mine->text, from, theirs.text);
}

Status Watch::take_alert(int from, const std::string& text, const Doing* doing, bool* known) {
  std::string_view rest(text);
  if (rest.size() < 2) return {};
  const char kind = rest[0];
  rest.remove_prefix(2);
  int64_t a = 0, b = 0, c = 0, peer = 0, sends = 0;
  if (kind == 'E') {
    if (!read_number(&rest, &a)) return {};
    *known = true;  // it has told everybody
    const auto code = static_cast<weftResult_t>(a);
    return Status(code == weftInvalidUsage || code == weftTimeout || code == weftAborted ? code : weftRemoteError,
                  fmt::format("rank {} reports: {}", from, rest));
  }
  if (kind != 'S') return {};
  for (int64_t* number : {&a, &b, &c, &peer, &sends}) {
    if (!read_number(&rest, number)) return {};
  }
  Doing theirs{static_cast<uint32_t>(a), static_cast<uint32_t>(b), static_cast<int>(c),
               std::string(rest),        static_cast<int>(peer),   sends != 0};
  words_[static_cast<size_t>(from)] = Word{theirs, Clock::now()};
  return compare(from, theirs, doing);
}

Status Watch::take_control(const Doing* doing, bool* known) {
  while (std::optional<Control> control = comm_.bootstrap().poll()) {
    if (control->from < 0 || control->from >= comm_.size() || control->from == comm_.rank()) continue;
    const auto from = static_cast<size_t>(control->from);
    switch (control->kind) {
      case Control::Kind::lost:
        lost_[from] = true;
        *known = true;
        return error(
            weftRemoteError, "rank {} died (its connection closed without a goodbye){}", control->from,
            doing == nullptr ? "" : fmt::format(" while this rank was in {}, {}", name(doing->sequence), doing->text));
      case Control::Kind::left:
        left_[from] = true;
        break;
      case Control::Kind::alert:
        WEFT_RETURN_IF_ERROR(take_alert(control->from, control->text, doing, known));
        break;
    }
  }
  return {};
}

// A wire's error by itself says little of the cause; the control plane is given a moment to say more.
Status Watch::wire_trouble(const Doing* doing) {
  const Wire* bad = nullptr;
  for (const auto& wire : comm_.wires()) {
    if (wire != nullptr && wire->error().kind != WireError::Kind::none) bad = wire.get();
  }
  if (bad == nullptr) return {};
  const WireError& trouble = bad->error();
  if (!trouble_) {
    trouble_ = true;
    trouble_since_ = Clock::now();
    if (doing != nullptr && trouble.kind == WireError::Kind::mismatch) say(*doing);
  }
  const auto& word = words_[static_cast<size_t>(bad->peer())];  // it may have said before what it is in
  if (trouble.kind == WireError::Kind::mismatch && word.has_value()) {
    WEFT_RETURN_IF_ERROR(compare(bad->peer(), word->doing, doing));
  }
  const bool may_be_explained = trouble.kind == WireError::Kind::closed || trouble.kind == WireError::Kind::mismatch;
  if (may_be_explained && Clock::now() - trouble_since_ < kReasonWait) return {};
  const std::string during = doing == nullptr ? "" : fmt::format(" in {}, {}", name(doing->sequence), doing->text);
  switch (trouble.kind) {
    case WireError::Kind::closed:
      return error(weftRemoteError, "rank {} is gone, or cannot be reached ({}){}", bad->peer(), trouble.text, during);
    case WireError::Kind::mismatch:
      return error(weftInvalidUsage, "the calls of rank {} and of this rank do not match{}", bad->peer(), during);
    default:
      return error(weftSystemError, "the {} connection to rank {} failed: {}{}", bad->transport(), bad->peer(),
                   trouble.text, during);
  }
}

// Messages that wait for a receive belong to operations that are still to come. One of an operation that is over here
// was sent by a rank that called something else.
Status Watch::stray_messages() {
  for (const auto& wire : comm_.wires()) {
    if (wire == nullptr) continue;
    early_.clear();
    wire->early(&early_);
    for (const MessageId& id : early_) {
      const auto past = id.sequence & MessageId::kPointToPoint ? std::nullopt : comm_.engine().past(id.sequence);
      if (!past.has_value()) continue;
      if (!stray_) {
        stray_ = true;
        stray_since_ = Clock::now();
        say(*past);  // the rank that sent it answers with its own call
      }
      if (Clock::now() - stray_since_ < kReasonWait) continue;
      return error(weftInvalidUsage, "the ranks' calls do not match at {}: rank {} called {}, rank {} something else",
                   name(id.sequence), comm_.rank(), past->text, wire->peer());
    }
  }
  return {};
}

// One that is waited for has left and never connected, or shares memory, so that nothing of it can be on its way. The
// end of any other connection comes after what was sent before it.
Status Watch::missed(const Doing& doing) {
  const int peer = doing.waiting_for;
  if (peer < 0 || !left_[static_cast<size_t>(peer)]) return {};
  Wire* wire = comm_.wires()[static_cast<size_t>(peer)].get();
  if (wire != nullptr && wire->connected() && wire->ring_wire() == nullptr) return {};
  if (std::exchange(missed_, peer) != peer) missed_since_ = Clock::now();
  if (Clock::now() - missed_since_ < kReasonWait) return {};
  return error(weftRemoteError, "rank {} has left (its communicator was destroyed) while this rank was in {}, {}", peer,
               name(doing.sequence), doing.text);
}

void Watch::say(const Doing& doing) {
  said_at_ = Clock::now();
  said_sequence_ = doing.sequence;
  said_waiting_ = doing.waiting_for;
  comm_.bootstrap().send(pack(doing));
}

Status Watch::look(const Doing* doing, Clock::time_point since, bool* known) {
  *known = false;
  WEFT_RETURN_IF_ERROR(take_control(doing, known));
  WEFT_RETURN_IF_ERROR(wire_trouble(doing));
  WEFT_RETURN_IF_ERROR(stray_messages());
  if (doing == nullptr) return {};
  WEFT_RETURN_IF_ERROR(missed(*doing));
  const auto now = Clock::now();
  const milliseconds patience = std::min(milliseconds(1000), milliseconds(comm_.timeout_ms.load() / 4));
  const bool news = said_sequence_ != doing->sequence || said_waiting_ != doing->waiting_for;
  if (now - since > patience && news && now - said_at_ > patience) {
    say(*doing);
    for (size_t from = 0; from < words_.size(); ++from) {
      if (words_[from].has_value()) {
        WEFT_RETURN_IF_ERROR(compare(static_cast<int>(from), words_[from]->doing, doing));
      }
    }
  }
  return {};
}

Status Watch::timed_out(const Doing& doing, milliseconds waited) {
  // Follow who waits for whom, as far as anybody says so.
  std::vector<bool> seen(words_.size());
  int blamed = doing.waiting_for;
  std::string behind;
  while (blamed >= 0 && blamed != comm_.rank() && !seen[static_cast<size_t>(blamed)]) {
    seen[static_cast<size_t>(blamed)] = true;
    const auto& word = words_[static_cast<size_t>(blamed)];
    if (!word.has_value()) break;
    // Two point-to-point calls of one number that wait for each other: both send, or both receive.
    const bool face_to_face =
        (doing.sequence & MessageId::kPointToPoint) != 0 && word->doing.waiting_for == comm_.rank();
    if (word->doing.sequence != doing.sequence || face_to_face) {
      behind = fmt::format(" (it is in {}, {})", name(word->doing.sequence), word->doing.text);
      break;
    }
    if (word->doing.waiting_for < 0 || word->doing.waiting_for == comm_.rank()) break;
    blamed = word->doing.waiting_for;
  }
  // One who waits for us, or for one who does, is in it, too. Then it is the one that is not, if that is but one.
  const auto is_in = [&](size_t rank) {
    return words_[rank].has_value() && words_[rank]->doing.sequence == doing.sequence;
  };
  const bool collective = (doing.sequence & MessageId::kPointToPoint) == 0;
  if (collective && behind.empty() && blamed >= 0 && (blamed == comm_.rank() || is_in(static_cast<size_t>(blamed)))) {
    std::vector<int> missing;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      if (rank != comm_.rank() && !is_in(static_cast<size_t>(rank))) missing.push_back(rank);
    }
    if (missing.size() == 1) blamed = missing[0];
  }
  // All words go through one rank. Where it waits itself, and relays, at least its own word is here by now.
  const int root = comm_.bootstrap().root();
  const bool silent = std::none_of(words_.begin(), words_.end(), [](const auto& word) { return word.has_value(); });
  if (silent && comm_.size() > 2 && root >= 0 && root != comm_.rank() && blamed >= 0 && blamed != root) {
    behind += fmt::format(", or rank {} hangs, through which the ranks tell each other what they wait for", root);
  }
  const double seconds = static_cast<double>(waited.count()) / 1000;
  if (blamed < 0 || blamed == comm_.rank()) {
    return error(weftTimeout, "{}, {}, was not done after {:.1f} s", name(doing.sequence), doing.text, seconds);
  }
  return error(weftTimeout,
               "{}, {}, timed out after {:.1f} s: rank {} did not take part{}; it hangs, is stopped or unreachable, or "
               "needs more than WEFT_TIMEOUT",
               name(doing.sequence), doing.text, seconds, blamed, behind);
}

void Watch::tell_failure(const Status& status) {
  comm_.bootstrap().send(fmt::format("E {}\n{}", static_cast<int>(status.code()), status.message()));
}

}  // namespace weft
