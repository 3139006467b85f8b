#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/bytes.hpp"
#include "bootstrap/crypto.hpp"
#include "bootstrap/listener.hpp"

namespace weft {
namespace {

constexpr std::string_view kIdMagic = "WID1";

// Whether somebody has taken the listener, in memory that forked processes share with the one that made it.
class SharedFlag {
 public:
  static Result<SharedFlag> create() {
    void* page = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return system_error(errno, "mmap");
    return SharedFlag(new (page) std::atomic<int>(0));
  }
  SharedFlag(SharedFlag&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  SharedFlag& operator=(SharedFlag&& other) noexcept {
    std::swap(flag_, other.flag_);
    return *this;
  }
  ~SharedFlag() {
    if (flag_ != nullptr) ::munmap(flag_, sizeof *flag_);
  }
  bool take() { return flag_->exchange(1) == 0; }

 private:
  explicit SharedFlag(std::atomic<int>* flag) : flag_(flag) {}
  std::atomic<int>* flag_;
};

struct Kept {
  Secret secret;
  std::shared_ptr<Listener> listener;
  SharedFlag taken;
};

std::mutex& kept_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::map<uint64_t, Kept>& kept() {
  static std::map<uint64_t, Kept> map;
  return map;
}

}  // namespace

weftUniqueId JobId::pack() const {
  std::string bytes(kIdMagic);
  put(bytes, Handshake::kVersion);
  put(bytes, uint8_t{listening});
  bytes.append(reinterpret_cast<const char*>(secret.data()), secret.size());
  put(bytes, group);
  put(bytes, static_cast<uint8_t>(address.size()));
  bytes += address;
  weftUniqueId id{};
  std::memcpy(id.internal, bytes.data(), std::min(bytes.size(), sizeof id.internal));
  return id;
}

Result<JobId> JobId::unpack(const weftUniqueId& packed) {
  ByteReader reader({packed.internal, sizeof packed.internal});
  JobId id;
  if (reader.take(kIdMagic.size()) != kIdMagic) {
    return error(weftInvalidArgument, "this unique id was not made by weftGetUniqueId (or its bytes were damaged)");
  }
  if (const auto version = reader.get<uint16_t>(); version != Handshake::kVersion) {
    return error(weftInvalidArgument,
                 "this unique id was made by a Weft of protocol version {}, this process has version {}: use the same "
                 "Weft everywhere",
                 version, Handshake::kVersion);
  }
  id.listening = reader.get<uint8_t>() != 0;
  const auto secret = reader.take(id.secret.size());
  std::memcpy(id.secret.data(), secret.data(), secret.size());
  id.group = reader.get<uint64_t>();
  id.address = reader.take(reader.get<uint8_t>());
  if (!reader.ok() || id.address.empty()) {
    return error(weftInvalidArgument, "this unique id is damaged: it holds no address");
  }
  return id;
}

Result<JobId> JobId::random() {
  JobId id;
  WEFT_RETURN_IF_ERROR(random_bytes(id.secret));
  std::array<uint8_t, sizeof id.group> group;
  WEFT_RETURN_IF_ERROR(random_bytes(group));
  std::memcpy(&id.group, group.data(), group.size());
  return id;
}

Result<weftUniqueId> make_unique_id(const Config& config) {
  auto listener = Listener::open(config);
  if (!listener.ok()) return listener.status();
  auto id = JobId::random();
  if (!id.ok()) return id.status();
  auto taken = SharedFlag::create();
  if (!taken.ok()) return taken.status();
  id->address = (*listener)->address();
  id->listening = true;
  // magic, version, flag, secret, group, length
  constexpr size_t kRoom = WEFT_UNIQUE_ID_BYTES - (4 + 2 + 1 + 16 + 8 + 1);
  if (id->address.size() > kRoom) {
    return error(weftInvalidArgument, "the address \"{}\" is too long for a unique id: at most {} characters",
                 id->address, kRoom);
  }
  const std::lock_guard lock(kept_mutex());
  kept().emplace(id->group, Kept{id->secret, std::move(*listener), std::move(*taken)});
  return id->pack();
}

std::shared_ptr<Listener> take_root_listener(const JobId& id) {
  const std::lock_guard lock(kept_mutex());
  const auto found = kept().find(id.group);
  if (found == kept().end() || !equal_secrets(found->second.secret, id.secret)) return nullptr;
  const auto node = kept().extract(found);
  return node.mapped().taken.take() ? std::move(node.mapped().listener) : nullptr;
}

}  // namespace weft
