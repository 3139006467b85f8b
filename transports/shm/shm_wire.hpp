// One shm wire: the rings, and what travels beside them on the unix socket.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "memory/regions.hpp"
#include "transports/ring_wire.hpp"

namespace weft {

class ShmWire final : public RingWire {
 public:
  // `forget` is called at the end of this wire's life.
  ShmWire(const TransportContext& context, int peer, std::function<void()> forget);
  ~ShmWire() override;

  // The authenticated socket. The dialler makes the rings and hands them over.
  void take(Fd socket, bool dialled);
  void refused(const Status& why) { fail(WireError::Kind::broken, why.message()); }

  std::string_view transport() const override { return "shm"; }
  bool show(const std::shared_ptr<const SharedRegion>& region) override;
  bool has_come(uint32_t region) override;
  void tick() override;
  void cancel() override;
  void close() override;

 private:
  // Everything on the socket is a record of this form; some carry a descriptor.
  struct Record {
    enum class Kind : uint32_t { rings = 'M', token = 'T', wake = 'W', region = 'R', freed = 'F', bye = 'B' };
    Kind kind = Kind::wake;
    uint32_t id = 0;  // of a region
    uint64_t a = 0;   // rings: bytes of each byte ring; token: its address; region: its size
    uint64_t b = 0;   // token: its value
  };
  struct Mapping {  // no bytes: it could not be mapped
    std::byte* base = nullptr;
    size_t bytes = 0;
  };

  bool share(const Piece& piece, ViewPiece* view) override;
  std::byte* map(const ViewPiece& view) override;
  bool pull(const ViewPiece& view, size_t offset, std::byte* to, size_t bytes) override;
  bool can_push() const override { return reaches_; }
  bool push(uint64_t address, const std::byte* from, size_t bytes) override;
  void wake_peer() override;
  void drain_wakeups() override { read_socket(); }
  // Until the peer's token has come, too: it decides how large messages travel.
  bool progress_connection() override {
    return socket_ && (!connected() || !token_record_.has_value()) ? read_socket() : false;
  }

  bool send_record(const Record& record, int fd = -1);
  bool read_socket();
  void handle(const Record& record);
  void map_rings(int fd, size_t data_bytes);
  void make_rings();
  void test_pull(const Record& token);
  using Copier = decltype(&::process_vm_readv);
  bool copy(Copier call, const char* name, std::byte* ours, uint64_t theirs, size_t bytes,
            const std::atomic<uint32_t>& gave_up);
  void tell_freed();

  TransportContext context_;
  std::function<void()> forget_;
  Fd socket_;
  pid_t peer_pid_ = 0;
  bool reaches_ = false;  // the peer's private memory
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  uint64_t token_ = 0;                  // read by the peer to find out whether it may
  std::optional<Record> token_record_;  // the peer's, which may come before the rings
  bool lower_ = false;
  bool gone_ = false, left_ = false, closed_ = false;
  std::string unread_;     // bytes of an incomplete record
  std::deque<Fd> passed_;  // descriptors that came and whose record was not handled yet
  std::map<uint32_t, std::weak_ptr<const SharedRegion>> shared_;  // regions the peer has got
  uint64_t freed_ = 0;                                            // regions_freed() when the peer was last told
  std::map<uint32_t, Mapping> mapped_;                            // regions of the peer's
};

}  // namespace weft
