#include "transports/shm/shm_wire.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>

#include "log/log.hpp"

namespace weft {

ShmWire::ShmWire(const TransportContext& context, int peer, std::function<void()> forget)
    : RingWire(peer), context_(context), forget_(std::move(forget)), lower_(context.rank < peer) {
  std::random_device random;
  token_ = uint64_t{random()} << 32 | random();
}

ShmWire::~ShmWire() {
  close();
  for (const auto& [id, mapping] : mapped_) {
    if (mapping.bytes > 0) ::munmap(mapping.base, mapping.bytes);
  }
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
  forget_();
}

// ---- Connection

void ShmWire::take(Fd socket, bool dialled) {
  if (closed_) return;
  socket_ = std::move(socket);
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0) peer_pid_ = credentials.pid;
  if (Status status = context_.poller->add(socket_.get(), EPOLLIN); !status.ok()) {
    fail(WireError::Kind::broken, status.message());
    return;
  }
  send_record({.kind = Record::Kind::token, .a = reinterpret_cast<uint64_t>(&token_), .b = token_});
  if (dialled) make_rings();
}

void ShmWire::make_rings() {
  size_t data_bytes = 64 << 10;
  while (data_bytes < static_cast<size_t>(context_.config->shm_ring_bytes)) data_bytes *= 2;
  Fd memory(::memfd_create("weft-ring", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(2 * ring_memory(data_bytes))) != 0) {
    fail(WireError::Kind::broken, system_error(errno, "shm: no memory for the rings").message());
    return;
  }
  if (!send_record({.kind = Record::Kind::rings, .a = data_bytes}, memory.get())) {
    const bool gone = errno == EPIPE || errno == ECONNRESET;
    fail(gone ? WireError::Kind::closed : WireError::Kind::broken,
         system_error(errno, "shm: the rings could not be handed over").message());
    return;
  }
  map_rings(memory.get(), data_bytes);
}

void ShmWire::map_rings(int fd, size_t data_bytes) {
  memory_bytes_ = 2 * ring_memory(data_bytes);
  void* base = ::mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    fail(WireError::Kind::broken, system_error(errno, "shm: mmap of the rings").message());
    return;
  }
  memory_ = static_cast<std::byte*>(base);
  const size_t ring = ring_memory(data_bytes);
  attach(memory_ + (lower_ ? 0 : ring), memory_ + (lower_ ? ring : 0), data_bytes);
}

// Whether this process may read the peer's memory is found out by reading a word that it named.
void ShmWire::test_pull(const Record& token) {
  uint64_t value = 0;
  iovec local{&value, sizeof value}, remote{reinterpret_cast<void*>(token.a), sizeof value};
  const bool works = context_.config->shm_cma && peer_pid_ > 0 &&
                     ::process_vm_readv(peer_pid_, &local, 1, &remote, 1, 0) == ssize_t{sizeof value} &&
                     value == token.b;
  if (!works) {
    log(LogLevel::info,
        "shm: private memory of rank {} cannot be read in place ({}); large messages go through the ring", peer(),
        context_.config->shm_cma ? std::strerror(errno) : "WEFT_SHM_CMA=0");
  }
  // What is allowed to read may be forbidden to write; the word stays what it is.
  reaches_ = works && ::process_vm_writev(peer_pid_, &local, 1, &remote, 1, 0) == ssize_t{sizeof value};
  rings_.rx.header()->can_pull.store(works ? 1 : 2, std::memory_order_release);
}

// ---- The socket

bool ShmWire::send_record(const Record& record, int fd) {
  iovec part{const_cast<Record*>(&record), sizeof record};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  // A unix stream socket takes a record whole or not at all: records are far smaller than its buffer's granularity.
  return ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t{sizeof record};
}

bool ShmWire::read_socket() {
  if (!socket_ || gone_) return false;
  bool moved = false;
  for (;;) {
    char bytes[1024];
    iovec part{bytes, sizeof bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      gone_ = true;
      context_.poller->remove(socket_.get());
      break;
    }
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
        passed_.emplace_back(fd);
      }
    }
    unread_.append(bytes, static_cast<size_t>(got));
    size_t at = 0;
    for (; unread_.size() - at >= sizeof(Record); at += sizeof(Record)) {
      Record record;
      std::memcpy(&record, unread_.data() + at, sizeof record);
      handle(record);
    }
    unread_.erase(0, at);
    moved = true;
  }
  return moved;
}

void ShmWire::handle(const Record& record) {
  const bool carries = record.kind == Record::Kind::rings || record.kind == Record::Kind::region;
  Fd fd;
  if (carries) {
    if (passed_.empty()) {
      // The kernel drops what there is no room for, and says nothing.
      fail(WireError::Kind::broken, system_error(EMFILE, "shm: a descriptor was lost on its way").message());
      return;
    }
    fd = std::move(passed_.front());
    passed_.pop_front();
  }
  switch (record.kind) {
    case Record::Kind::rings:
      if (memory_ == nullptr) map_rings(fd.get(), record.a);
      if (token_record_.has_value() && connected()) test_pull(*token_record_);
      break;
    case Record::Kind::token:
      token_record_ = record;
      if (connected()) test_pull(record);
      break;
    case Record::Kind::region: {
      void* base = ::mmap(nullptr, record.a, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
      if (base == MAP_FAILED) log(LogLevel::info, "shm: mmap of memory of rank {}: {}", peer(), std::strerror(errno));
      mapped_[record.id] = base == MAP_FAILED ? Mapping{} : Mapping{static_cast<std::byte*>(base), record.a};
      break;
    }
    case Record::Kind::freed:
      if (auto found = mapped_.find(record.id); found != mapped_.end()) {
        if (found->second.bytes > 0) ::munmap(found->second.base, found->second.bytes);
        mapped_.erase(found);
      }
      break;
    case Record::Kind::bye:
      left_ = true;
      break;
    case Record::Kind::wake:
      break;
  }
}

void ShmWire::wake_peer() {
  if (socket_) send_record({.kind = Record::Kind::wake});
}

void ShmWire::tick() {
  read_socket();
  tell_freed();
  if (!gone_) return;
  while (progress()) {
  }
  if (has_requests()) fail(WireError::Kind::closed, left_ ? "its communicator was destroyed" : "it died");
}

void ShmWire::cancel() {
  RingWire::cancel();
  // A peer that runs ends its write at once.
  for (const Deadline deadline = Deadline::after(std::chrono::milliseconds(200));
       peer_writes() && !gone_ && !deadline.passed();) {
    read_socket();
    ::sched_yield();
  }
  if (peer_writes() && !gone_) {
    log(LogLevel::warn,
        "shm: rank {} was stopped while it wrote to memory of rank {}; once it goes on it will write the rest of a "
        "tile",
        peer(), context_.rank);
  }
  close();
}

void ShmWire::close() {
  if (closed_) return;
  closed_ = true;
  if (!socket_) return;
  if (!gone_) context_.poller->remove(socket_.get());
  send_record({.kind = Record::Kind::bye});
  socket_.reset();
}

// ---- Memory

bool ShmWire::show(const std::shared_ptr<const SharedRegion>& region) {
  tell_freed();
  if (shared_.contains(region->id)) return true;
  if (!socket_ ||
      !send_record({.kind = Record::Kind::region, .id = region->id, .a = region->bytes}, region->fd.get())) {
    return false;
  }
  shared_[region->id] = region;
  return true;
}

bool ShmWire::has_come(uint32_t region) {
  if (!mapped_.contains(region)) read_socket();
  return mapped_.contains(region);
}

// The peer lets go of what was freed here; until then its mapping keeps the memory. Ids are never used again, so a
// mapping that is still there is never taken for another one.
void ShmWire::tell_freed() {
  const uint64_t freed = regions_freed();
  if (freed == freed_ || !socket_) return;
  freed_ = freed;
  std::erase_if(shared_, [this](const auto& entry) {
    if (!entry.second.expired()) return false;
    if (send_record({.kind = Record::Kind::freed, .id = entry.first})) return true;
    freed_ = 0;  // no room now
    return false;
  });
}

bool ShmWire::share(const Piece& piece, ViewPiece* view) {
  const auto region = find_region(piece.data, piece.bytes);
  if (region == nullptr || !show(region)) return false;
  *view = {static_cast<uint64_t>(piece.data - region->base), region->id, static_cast<uint32_t>(piece.bytes)};
  return true;
}

std::byte* ShmWire::map(const ViewPiece& view) {
  auto found = mapped_.find(view.region);
  if (found == mapped_.end()) {  // its record was sent before the message
    read_socket();
    found = mapped_.find(view.region);
  }
  if (found == mapped_.end() || view.address + view.bytes > found->second.bytes) return nullptr;
  return found->second.base + view.address;
}

bool ShmWire::pull(const ViewPiece& view, size_t offset, std::byte* to, size_t bytes) {
  return copy(::process_vm_readv, "process_vm_readv", to, view.address + offset, bytes, rings_.rx.header()->revoked);
}

bool ShmWire::push(uint64_t address, const std::byte* from, size_t bytes) {
  return copy(::process_vm_writev, "process_vm_writev", const_cast<std::byte*>(from), address, bytes,
              rings_.tx.header()->withdrawn);
}

// One that gave up may have freed the memory, too.
bool ShmWire::copy(Copier call, const char* name, std::byte* ours, uint64_t theirs, size_t bytes,
                   const std::atomic<uint32_t>& gave_up) {
  while (bytes > 0 && error_.kind == WireError::Kind::none) {
    iovec local{ours, bytes}, remote{reinterpret_cast<void*>(theirs), bytes};
    const ssize_t done = call(peer_pid_, &local, 1, &remote, 1, 0);
    if (done <= 0) {
      const int number = errno;
      const bool gone = number == ESRCH || gave_up.load(std::memory_order_acquire) != 0;
      fail(gone ? WireError::Kind::closed : WireError::Kind::broken,
           gone ? "the peer died, or gave up" : system_error(number, std::string("shm: ") + name).message());
      return false;
    }
    ours += done;
    theirs += static_cast<size_t>(done);
    bytes -= static_cast<size_t>(done);
  }
  return bytes == 0;
}

}  // namespace weft
