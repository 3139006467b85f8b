// The UCP worker of one communicator, which all its wires share, and what they leave behind.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transports/note_stream.hpp"
#include "transports/transport.hpp"
#include "transports/ucx/context.hpp"
#include "transports/ucx/frame.hpp"

namespace weft::ucx {

class UcxWire;
class Worker;

// Id of the active message that carries Weft's.
inline constexpr unsigned kMessage = 1;

// Memory for what cannot be received where it belongs.
struct Scratch {
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

// What UCX works at for a wire. It stays where it is until UCX has called back, whatever becomes of the wire.
struct Operation {
  Operation* next = nullptr;
  Worker* worker = nullptr;
  UcxWire* wire = nullptr;  // null: cancelled, nobody waits for it
  Header header;
  SendRequest* send = nullptr;
  RecvRequest* recv = nullptr;
  std::vector<ucp_dt_iov_t> parts;
  Scratch scratch;
};

// UCX's end of a connection to one peer.
struct Endpoint {
  ucp_ep_h handle = nullptr;
  UcxWire* wire = nullptr;
};

class Worker {
 public:
  static Result<std::shared_ptr<Worker>> create(const TransportContext& context);
  Worker(const TransportContext& context, std::shared_ptr<Context> ucx, ucp_worker_h handle);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Library& ucp() const { return ucx_->ucp(); }
  ucp_worker_h handle() const { return handle_; }
  bool forked() const { return ucx_->forked(); }
  int rank() const { return context_.rank; }
  Poller* poller() const { return context_.poller; }
  const std::string& address() const { return address_; }
  const char* text(ucs_status_t status) const { return ucp().ucs_status_string(status); }

  // All wires: what came is handed out to those that it is for.
  bool progress();
  // Before a sleep: false when there was something.
  bool arm();
  void disarm() { armed_ = false; }

  // The endpoint to a peer, made at the first call.
  Result<Endpoint*> endpoint(int peer, const std::string& address);
  // From now on messages and errors of the peer are the wire's; from then on nobody's.
  void attach(int peer, UcxWire& wire);
  void detach(int peer, UcxWire& wire);
  UcxWire* wire(int peer) const { return endpoints_[static_cast<size_t>(peer)].wire; }
  // Sends everything that was handed over, so far as the peer takes it in time.
  void flush(Endpoint& endpoint, Deadline deadline);
  // Ends all that is under way there. See UcxWire::cancel.
  void close(Endpoint& endpoint);
  // UCX is not called any more, and does nothing.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  // The same, while UCX still moves something: it aborts if it is taken down then, and so it never is.
  void abandon() { stopped_ = abandoned_ = true; }
  // An endpoint was closed with operations under way.
  void break_off() { broken_ = true; }
  // Of a wire that has said goodbye: the worker is not taken down before the peer has had all that was sent to it, or a
  // little time is over.
  void see_off(NoteStream control) { leaving_.push_back(std::move(control)); }

  // UCX calls back: its request is done with.
  void called(void* request);
  Operation& take(UcxWire& wire);
  void give_back(Operation& operation);
  Scratch take_scratch(size_t bytes);

 private:
  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data, size_t length,
                                 const ucp_am_recv_param_t* param);
  static void on_error(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  Status open();
  void wait(ucs_status_ptr_t request, Deadline deadline);
  void settle();
  void linger();

  TransportContext context_;
  std::shared_ptr<Context> ucx_;
  ucp_worker_h handle_;
  std::string address_;
  int event_fd_ = -1;
  std::vector<Endpoint> endpoints_;  // by rank
  std::vector<NoteStream> leaving_;
  std::deque<Operation> operations_;
  Operation* free_ = nullptr;
  std::vector<Scratch> scratch_;
  size_t scratch_bytes_ = 0;
  bool armed_ = false;
  bool called_ = false;  // UCX has called back
  bool stopped_ = false, abandoned_ = false, broken_ = false;
};

}  // namespace weft::ucx
