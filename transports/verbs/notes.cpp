#include "transports/verbs/notes.hpp"

#include <algorithm>

namespace weft::verbs {
namespace {

std::string begin(NoteKind kind) {
  std::string note;
  put(note, static_cast<uint8_t>(kind));
  return note;
}

void put_rail(std::string& note, const RailAddress& rail) {
  put_text(note, rail.name);
  note.append(reinterpret_cast<const char*>(rail.gid.data()), rail.gid.size());
  put(note, rail.lid);
  put(note, rail.mtu);
  put(note, static_cast<uint8_t>(rail.ethernet));
  put(note, rail.cm_port);
}

RailAddress get_rail(ByteReader& reader) {
  RailAddress rail;
  rail.name = reader.text();
  const std::string_view gid = reader.take(rail.gid.size());
  std::copy(gid.begin(), gid.end(), reinterpret_cast<char*>(rail.gid.data()));
  rail.lid = reader.get<uint16_t>();
  rail.mtu = reader.get<uint8_t>();
  rail.ethernet = reader.get<uint8_t>() != 0;
  rail.cm_port = reader.get<uint16_t>();
  return rail;
}

// IPv4-mapped: the first three bytes of the address; others: the subnet prefix.
bool same_subnet(const RawGid& a, const RawGid& b) {
  const size_t bytes = is_ipv4_mapped(a) ? 15 : 8;
  return is_ipv4_mapped(a) == is_ipv4_mapped(b) && std::equal(a.begin(), a.begin() + bytes, b.begin());
}

}  // namespace

std::string pack(const HelloNote& hello) {
  std::string note = begin(NoteKind::hello);
  put(note, hello.eager);
  put(note, hello.credits);
  put(note, hello.queue_pairs);
  put(note, static_cast<uint8_t>(hello.cm));
  put(note, static_cast<uint8_t>(hello.rails.size()));
  for (const RailAddress& rail : hello.rails) put_rail(note, rail);
  return note;
}

bool unpack(std::string_view body, HelloNote* hello) {
  ByteReader reader(body);
  hello->eager = reader.get<uint32_t>();
  hello->credits = reader.get<uint32_t>();
  hello->queue_pairs = reader.get<uint32_t>();
  hello->cm = reader.get<uint8_t>() != 0;
  const auto count = reader.get<uint8_t>();
  for (int i = 0; i < count && reader.ok(); ++i) hello->rails.push_back(get_rail(reader));
  return reader.ok() && count <= kMostRails;
}

std::string pack(const UpNote& up) {
  std::string note = begin(NoteKind::up);
  put(note, up.pair);
  put(note, up.epoch);
  put(note, up.token);
  put_rail(note, up.rail);
  put(note, static_cast<uint8_t>(up.numbers.size()));
  for (size_t i = 0; i < up.numbers.size(); ++i) {
    put(note, up.numbers[i]);
    put(note, up.packets[i]);
  }
  return note;
}

bool unpack(std::string_view body, UpNote* up) {
  ByteReader reader(body);
  up->pair = reader.get<uint32_t>();
  up->epoch = reader.get<uint32_t>();
  up->token = reader.get<uint64_t>();
  up->rail = get_rail(reader);
  const auto count = reader.get<uint8_t>();
  for (int i = 0; i < count && reader.ok(); ++i) {
    up->numbers.push_back(reader.get<uint32_t>());
    up->packets.push_back(reader.get<uint32_t>());
  }
  return reader.ok() && up->pair < kMostRails && up->epoch != 0;
}

std::string pack(const ReadyNote& ready) {
  std::string note = begin(NoteKind::ready);
  put(note, ready.pair);
  put(note, ready.epoch);
  return note;
}

bool unpack(std::string_view body, ReadyNote* ready) {
  ByteReader reader(body);
  ready->pair = reader.get<uint32_t>();
  ready->epoch = reader.get<uint32_t>();
  return reader.ok() && ready->pair < kMostRails;
}

std::string pack(const DownNote& down) {
  std::string note = begin(NoteKind::down);
  put(note, down.pair);
  put(note, down.epoch);
  put_text(note, down.reason);
  put(note, down.taken.upto);
  put(note, down.taken.beyond);
  put(note, static_cast<uint32_t>(down.partial.size()));
  for (const auto& partial : down.partial) {
    put(note, partial.slot);
    put(note, partial.generation);
    put_text(note, partial.bits);
  }
  return note;
}

bool unpack(std::string_view body, DownNote* down) {
  ByteReader reader(body);
  down->pair = reader.get<uint32_t>();
  down->epoch = reader.get<uint32_t>();
  down->reason = reader.text();
  down->taken.upto = reader.get<uint32_t>();
  down->taken.beyond = reader.get<uint32_t>();
  const auto count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    DownNote::Partial partial;
    partial.slot = reader.get<uint32_t>();
    partial.generation = reader.get<uint32_t>();
    partial.bits = reader.text();
    down->partial.push_back(std::move(partial));
  }
  return reader.ok() && down->pair < kMostRails;
}

std::string pack(const RefuseNote& refuse) {
  std::string note = begin(NoteKind::refuse);
  put(note, refuse.ours.sequence);
  put(note, refuse.ours.index);
  put(note, refuse.ours.signature);
  put(note, refuse.theirs.signature);
  put(note, refuse.bytes);
  return note;
}

bool unpack(std::string_view body, RefuseNote* refuse) {
  ByteReader reader(body);
  refuse->ours.sequence = refuse->theirs.sequence = reader.get<uint32_t>();
  refuse->ours.index = refuse->theirs.index = reader.get<uint32_t>();
  refuse->ours.signature = reader.get<uint32_t>();
  refuse->theirs.signature = reader.get<uint32_t>();
  refuse->bytes = reader.get<uint64_t>();
  return reader.ok();
}

std::string pack(const ByeNote& bye) {
  std::string note = begin(NoteKind::bye);
  put(note, bye.frames);
  return note;
}

bool unpack(std::string_view body, ByeNote* bye) {
  ByteReader reader(body);
  bye->frames = reader.get<uint32_t>();
  return reader.ok();
}

std::vector<std::pair<int, int>> pair_rails(const std::vector<RailAddress>& lower,
                                            const std::vector<RailAddress>& higher) {
  std::vector<int> partner(lower.size(), -1);
  std::vector<bool> taken(higher.size());
  for (const bool subnets : {true, false}) {
    for (size_t a = 0; a < lower.size(); ++a) {
      for (size_t b = 0; b < higher.size() && partner[a] < 0; ++b) {
        if (taken[b] || lower[a].ethernet != higher[b].ethernet) continue;
        if (subnets && !same_subnet(lower[a].gid, higher[b].gid)) continue;
        partner[a] = static_cast<int>(b);
        taken[b] = true;
      }
    }
  }
  std::vector<std::pair<int, int>> pairs;
  for (size_t a = 0; a < lower.size(); ++a) {
    if (partner[a] >= 0) pairs.emplace_back(static_cast<int>(a), partner[a]);
  }
  return pairs;
}

}  // namespace weft::verbs
