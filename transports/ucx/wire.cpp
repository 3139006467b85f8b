#include "transports/ucx/wire.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "bootstrap/crypto.hpp"

namespace weft::ucx {
namespace {

using std::chrono::milliseconds;

// Calls of progress() between two looks at the notes.
constexpr uint32_t kLookEvery = 64;
// Messages that wait for such a look at most, while more are coming.
constexpr size_t kMostLanded = 4;
// Of a waiter, about a millisecond each.
constexpr uint32_t kTicksAlone = 200;
constexpr milliseconds kFlushTime{1000}, kIdleTime{100}, kCancelTime{5000};

}  // namespace

UcxWire::UcxWire(int peer, std::shared_ptr<Worker> worker, size_t eager_bytes)
    : Wire(peer), worker_(std::move(worker)), eager_bytes_(eager_bytes) {
  worker_->attach(peer, *this);
}

UcxWire::~UcxWire() {
  if (worker_->forked()) {
    control_.abandon();
  } else {
    cancel();
  }
}

void UcxWire::reach(const std::string& worker_address) {
  if (dead_) return;
  auto endpoint = worker_->endpoint(peer(), worker_address);
  if (!endpoint.ok()) return fail(WireError::Kind::broken, endpoint.status().message());
  endpoint_ = *endpoint;
  start_waiting();
}

void UcxWire::adopt(Fd fd) {
  if (dead_ || control_.is_open()) return;
  uint8_t token[sizeof own_token_];
  Status status = random_bytes(token);
  if (status.ok()) status = control_.open(std::move(fd), worker_->poller());
  if (!status.ok()) return fail(WireError::Kind::broken, status.message());
  std::memcpy(&own_token_, token, sizeof token);
  Note hello;
  hello.kind = Note::Kind::hello;
  hello.value = own_token_;
  control_.send(pack(hello));
}

void UcxWire::connection_failed(const std::string& why) { fail(WireError::Kind::closed, why); }

void UcxWire::start_waiting() {
  if (!connected()) return;
  for (; !unconnected_.empty() && !dead_; unconnected_.pop()) start(*unconnected_.front());
}

bool UcxWire::usable() {
  if (worker_->stopped()) fail(WireError::Kind::broken, "UCX was stopped when another wire was cancelled");
  return !dead_;
}

void UcxWire::send(SendRequest& request) {
  request.done = false;
  if (!usable()) return;
  ++requests_;
  if (connected()) {
    start(request);
  } else {
    unconnected_.push(&request);
  }
}

void UcxWire::start(SendRequest& request) {
  Operation& operation = worker_->take(*this);
  ++operations_;
  operation.send = &request;
  operation.header = {peer_token_, worker_->rank(), request.id.sequence, request.id.index, request.id.signature};
  operation.parts.clear();
  for (uint32_t i = 0; i < request.source.count; ++i) {
    const Piece& piece = request.source.pieces[i];
    if (piece.bytes > 0) operation.parts.push_back({piece.data, piece.bytes});
  }
  const size_t bytes = request.source.bytes, cost = bytes + kMessageCost;
  const bool eager = bytes <= eager_bytes_ && (bytes == 0 || eager_sent_ - eager_confirmed_ + cost <= kWindow);
  if (eager) eager_sent_ += cost;

  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE;
  param.flags = eager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  param.cb.send = on_sent;
  param.user_data = &operation;
  const void* data = nullptr;
  size_t count = bytes;
  param.datatype = ucp_dt_make_contig(1);
  if (operation.parts.size() == 1) {
    data = operation.parts[0].buffer;
  } else if (operation.parts.size() > 1) {
    data = operation.parts.data();
    count = operation.parts.size();
    param.datatype = UCP_DATATYPE_IOV;
  }
  const ucs_status_ptr_t result = worker_->ucp().ucp_am_send_nbx(endpoint_->handle, kMessage, &operation.header,
                                                                 sizeof operation.header, data, count, &param);
  if (!UCS_PTR_IS_PTR(result)) sent(operation, UCS_PTR_STATUS(result));
}

void UcxWire::on_sent(void* request, ucs_status_t status, void* at) {
  auto& operation = *static_cast<Operation*>(at);
  UcxWire* wire = operation.wire;
  Worker& worker = *operation.worker;
  worker.called(request);
  if (wire != nullptr) {
    wire->sent(operation, status);
  } else {
    worker.give_back(operation);
  }
}

void UcxWire::sent(Operation& operation, ucs_status_t status) {
  SendRequest& request = *operation.send;
  --operations_;
  worker_->give_back(operation);
  if (cancelled_) return;
  moved_ = true;
  if (status != UCS_OK) return lost(status);
  --requests_;
  ++messages_out_;
  ++stats_.messages_sent;
  stats_.bytes_sent += request.source.bytes;
  request.done = true;
}

bool UcxWire::progress() {
  if (requests_ == 0 || !usable()) return false;
  const bool more = worker_->progress();
  if (!landed_.empty() && (!more || landed_.size() >= kMostLanded)) accept_landed();
  if (!connected() || ++calls_ % kLookEvery == 0) look();
  check_peer();
  return std::exchange(moved_, false);
}

void UcxWire::check_peer() {
  if (left_) {
    check_left();
  } else if (control_.ended()) {
    check_gone();
  }
}

bool UcxWire::arm() {
  if (accept_landed() || look() || !worker_->arm() || accept_landed()) return false;
  check_peer();
  return error_.kind == WireError::Kind::none;
}

void UcxWire::tick() {
  if (dead_) return;
  if (!accept_landed()) look();
  if (requests_ == 0) worker_->progress();
  check_peer();
  // What the peer has taken, or had sent, is complete here soon after, but not at once.
  if (!dead_ && control_.ended() && operations_ > 0 && ++ticks_alone_ > kTicksAlone) {
    fail(WireError::Kind::closed, fmt::format("rank {} has left, with messages to or from it outstanding", peer()));
  }
}

void UcxWire::early(std::vector<MessageId>* ids) const {
  early_.for_each([ids](const Early& early) {
    ids->push_back({early.frame.sequence, early.frame.index, early.frame.signature});
  });
}

// After it no memory of a request is touched.
//
// Closing an endpoint by force (which needs error handling at both ends, see Worker::endpoint) sets queue pairs to the
// error state, so that neither our sends nor what a peer writes goes on, flushes the connections, and then gives sends
// and fetches back as cancelled. What comes for them later has no request to go to and is dropped. Progress is made
// here until all are given back.
//
// That may never happen: a flush of shared memory waits for room in a queue that the peer has to empty. Then nothing
// moves, and the worker makes no progress ever again; all that UCX writes by software, it writes in progress. The
// communicator that it belongs to is cancelled as a whole anyhow.
//
// A peer on the same host may read our memory with process_vm_readv later, and have whatever is there by then. It finds
// out before it calls the message received, since our connection is closed first: see accept_landed().
//
// UCX_RNDV_SCHEME=put_zcopy with cma, which nobody has reason to ask for, is not covered.
void UcxWire::cancel() {
  if (cancelled_) return;
  dead_ = cancelled_ = true;
  control_.close();
  unconnected_.clear();
  posted_.clear();
  requests_ = 0;
  early_.clear([this](Early& early) {
    if (early.descriptor != nullptr) worker_->ucp().ucp_am_data_release(worker_->handle(), early.descriptor);
  });
  if (endpoint_ != nullptr && operations_ > 0) {
    worker_->break_off();
    worker_->close(*endpoint_);
  }
  for (Operation* operation : landed_) worker_->give_back(*operation);
  landed_.clear();
  const Deadline last = Deadline::after(kCancelTime);
  for (Deadline idle = last.within(kIdleTime); operations_ > 0 && !worker_->stopped();) {
    if (worker_->progress()) {
      idle = last.within(kIdleTime);
    } else if (idle.passed()) {
      worker_->stop();
    }
    if (last.passed()) worker_->abandon();
  }
  worker_->detach(peer(), *this);
}

void UcxWire::close() {
  if (dead_) return cancel();
  if (messages_out_ > 0) worker_->flush(*endpoint_, Deadline::after(kFlushTime));
  look();
  if (!dead_ && control_.is_open()) {
    Note bye;
    bye.value = messages_out_;
    control_.send(pack(bye));
    if (!left_ && messages_out_ > 0) worker_->see_off(std::move(control_));
  }
  cancel();
}

}  // namespace weft::ucx
