// The receiving side of the wire, and what goes wrong.
#include <fmt/core.h>

#include "transports/clash.hpp"
#include "transports/ucx/wire.hpp"

namespace weft::ucx {
namespace {

constexpr int kLastCalls = 1000;

MessageId id_of(const Header& header) { return {header.sequence, header.index, header.signature}; }

// Where a message can land as it comes; nullptr when it has to be taken apart or combined.
std::byte* landing(const Sink& sink) {
  if (sink.reduce != nullptr) return nullptr;
  for (uint32_t i = 0; i < sink.count; ++i) {
    if (sink.dst[i].bytes == sink.bytes) return sink.dst[i].data;
    if (sink.dst[i].bytes > 0) return nullptr;
  }
  return nullptr;
}

}  // namespace

void UcxWire::recv(RecvRequest& request) {
  request.done = false;
  if (!usable()) return;
  ++requests_;
  Early* early = early_.empty() ? nullptr : early_.find(request.id.key());
  if (early == nullptr) return posted_.insert(request.id.key(), request);
  if (!matches(request.id, request.sink.bytes, early->frame, early->length)) return;
  if (early->descriptor != nullptr) {
    void* descriptor = early->descriptor;
    early_.release(*early);
    fetch(request, descriptor);
  } else {
    take(request, early->data.get(), early->length);
    early_.release(*early);
  }
}

// A rendezvous is kept if it does not match, so that the peer hears of that from our note.
ucs_status_t UcxWire::incoming(const Header& header, void* data, size_t length, bool rendezvous) {
  if (cancelled_) return rendezvous ? UCS_ERR_CANCELED : UCS_OK;
  moved_ = true;
  if (!rendezvous) ++messages_in_;
  RecvRequest* request = dead_ ? nullptr : posted_.find(header.key());
  if (request != nullptr && matches(request->id, request->sink.bytes, header, length)) {
    posted_.take(header.key());
    if (rendezvous) {
      fetch(*request, data);
    } else {
      take(*request, data, length);
    }
    return UCS_OK;
  }
  if (early_.find(header.key()) != nullptr) {
    fail(WireError::Kind::broken,
         fmt::format("rank {} sent message {}.{} twice", peer(), header.sequence, header.index));
    return rendezvous ? UCS_ERR_REJECTED : UCS_OK;
  }
  early_.add(header, data, length, rendezvous);
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

// Of an eager message.
void UcxWire::take(RecvRequest& request, const void* data, size_t length) {
  request.sink.consume(0, static_cast<const std::byte*>(data), length);
  eager_taken_ += length + kMessageCost;
  if (eager_taken_ - eager_told_ >= kWindow / 4) {
    Note credit;
    credit.kind = Note::Kind::credit;
    credit.value = eager_told_ = eager_taken_;
    control_.send(pack(credit));
  }
  arrived(request);
}

// Of a rendezvous: UCX gets it from there, into its place or into scratch.
void UcxWire::fetch(RecvRequest& request, void* descriptor) {
  const size_t bytes = request.sink.bytes;
  Operation& operation = worker_->take(*this);
  ++operations_;
  operation.recv = &request;
  void* into = landing(request.sink);
  if (into == nullptr) {
    operation.scratch = worker_->take_scratch(bytes);
    into = operation.scratch.data.get();
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
  param.cb.recv_am = on_fetched;
  param.user_data = &operation;
  param.datatype = ucp_dt_make_contig(1);
  const ucs_status_ptr_t result =
      worker_->ucp().ucp_am_recv_data_nbx(worker_->handle(), descriptor, into, bytes, &param);
  if (!UCS_PTR_IS_PTR(result)) fetched(operation, UCS_PTR_STATUS(result));
}

void UcxWire::on_fetched(void* request, ucs_status_t status, size_t /*length*/, void* at) {
  auto& operation = *static_cast<Operation*>(at);
  operation.worker->called(request);
  if (operation.wire != nullptr) {
    operation.wire->fetched(operation, status);
  } else {
    operation.worker->give_back(operation);
  }
}

void UcxWire::fetched(Operation& operation, ucs_status_t status) {
  --operations_;
  if (cancelled_) return worker_->give_back(operation);
  moved_ = true;
  if (status != UCS_OK) {
    lost(status);
    worker_->give_back(operation);
  } else {
    landed_.push_back(&operation);
  }
}

// What was read from a peer's memory is its message only if the peer had not given that up meanwhile: it closes its
// connection before it lets go of the memory. One look, a system call, is enough for all that were read before it.
bool UcxWire::accept_landed() {
  if (landed_.empty()) return false;
  look();
  const bool good = !dead_ && (left_ || !control_.ended());
  for (Operation* operation : landed_) {
    if (good) {
      RecvRequest& request = *operation->recv;
      const Scratch& scratch = operation->scratch;
      if (scratch.data != nullptr) request.sink.consume(0, scratch.data.get(), request.sink.bytes);
      ++messages_in_;
      arrived(request);
    }
    worker_->give_back(*operation);
  }
  landed_.clear();
  return true;
}

void UcxWire::arrived(RecvRequest& request) {
  --requests_;
  ++stats_.messages_received;
  stats_.bytes_received += request.sink.bytes;
  request.done = true;
}

bool UcxWire::look() {
  bool moved = false;
  while (!dead_) {
    const std::optional<std::string> bytes = control_.next();
    if (!bytes.has_value()) break;
    moved = true;
    Note note;
    if (unpack(*bytes, &note)) {
      on_note(note);
    } else {
      fail(WireError::Kind::broken, fmt::format("rank {} sent what is no note of ours", peer()));
    }
  }
  return moved;
}

// The peer is gone without a goodbye. What it had sent may still be with UCX.
void UcxWire::check_gone() {
  if (dead_ || left_ || !control_.ended()) return;
  for (int i = 0; i < kLastCalls && worker_->progress(); ++i) continue;
  fail(WireError::Kind::closed, fmt::format("rank {} closed its connection without a goodbye", peer()));
}

void UcxWire::on_note(const Note& note) {
  switch (note.kind) {
    case Note::Kind::hello:
      peer_token_ = note.value;
      welcome_ = true;
      return start_waiting();
    case Note::Kind::refuse:
      return on_refuse(note);
    case Note::Kind::credit:
      eager_confirmed_ = note.value;
      return;
    case Note::Kind::bye:
      left_ = true;
      messages_left_ = note.value;
      return;
    case Note::Kind::farewell:
      return;  // to one who has left
  }
  fail(WireError::Kind::broken, fmt::format("rank {} sent what is no note of ours", peer()));
}

void UcxWire::on_refuse(const Note& note) {
  const MessageId theirs{note.sequence, note.index, note.signature};
  MessageId ours = theirs;
  ours.signature = note.theirs;
  fail(refusal(peer(), ours, theirs, note.value));
}

bool UcxWire::matches(const MessageId& ours, size_t bytes, const Header& theirs, size_t length) {
  std::optional<WireError> error = clash(peer(), ours, bytes, id_of(theirs), length);
  if (!error.has_value()) return true;
  Note note;
  note.kind = Note::Kind::refuse;
  note.sequence = ours.sequence;
  note.index = ours.index;
  note.signature = ours.signature;
  note.theirs = theirs.signature;
  note.value = bytes;
  control_.send(pack(note));
  fail(std::move(*error));
  return false;
}

// After a goodbye nothing comes but what the peer had sent before; a receive that is not among that waits in vain.
void UcxWire::check_left() {
  if (dead_ || messages_in_ < messages_left_) return;
  if (!std::exchange(seen_off_, true)) {
    Note farewell;
    farewell.kind = Note::Kind::farewell;
    control_.send(pack(farewell));
  }
  if (!posted_.empty() || !unconnected_.empty()) {
    fail(WireError::Kind::closed, fmt::format("rank {} has left, with messages to or from it outstanding", peer()));
  }
}

void UcxWire::endpoint_failed(ucs_status_t status) {
  look();
  if (!left_) lost(status);
}

// The peer may have told us why before it went.
void UcxWire::lost(ucs_status_t status) {
  look();
  if (!dead_) fail(WireError::Kind::closed, fmt::format("UCX lost rank {}: {}", peer(), worker_->text(status)));
}

void UcxWire::fail(WireError why) {
  dead_ = true;
  if (error_.kind == WireError::Kind::none) error_ = std::move(why);
}

}  // namespace weft::ucx
