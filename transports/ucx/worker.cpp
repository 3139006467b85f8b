#include "transports/ucx/worker.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "log/log.hpp"
#include "transports/ucx/wire.hpp"

namespace weft::ucx {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLinger{500}, kCloseTime{100};
constexpr int kIdleCalls = 16;
constexpr size_t kKeptScratch = 64 << 20;

// Whether UCX may use transports of one host, cma among them.
bool shares_memory(const Config& config) {
  const char* environment = std::getenv("UCX_TLS");
  const std::string list = !config.ucx_tls.empty() ? config.ucx_tls : environment != nullptr ? environment : "all";
  return list != "tcp";
}

}  // namespace

Result<std::shared_ptr<Worker>> Worker::create(const TransportContext& context) {
  auto ucx = Context::open(*context.config);
  if (!ucx.ok()) return ucx.status();
  const Library& ucp = (*ucx)->ucp();
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  ucp_worker_h handle = nullptr;
  const SignalsBlocked blocked;
  if (const ucs_status_t status = ucp.ucp_worker_create((*ucx)->handle(), &params, &handle); status != UCS_OK) {
    return error(weftSystemError, "ucp_worker_create: {}", ucp.ucs_status_string(status));
  }
  auto worker = std::make_shared<Worker>(context, *ucx, handle);
  WEFT_RETURN_IF_ERROR(worker->open());
  return worker;
}

Worker::Worker(const TransportContext& context, std::shared_ptr<Context> ucx, ucp_worker_h handle)
    : context_(context),
      ucx_(std::move(ucx)),
      handle_(handle),
      endpoints_(static_cast<size_t>(std::max(context.size, 0))) {}

Status Worker::open() {
  const auto failure = [&](const char* what, ucs_status_t status) {
    return error(weftSystemError, "{}: {}", what, text(status));
  };
  ucp_address_t* bytes = nullptr;
  size_t length = 0;
  ucs_status_t status = ucp().ucp_worker_get_address(handle_, &bytes, &length);
  if (status != UCS_OK) return failure("ucp_worker_get_address", status);
  address_.assign(reinterpret_cast<const char*>(bytes), length);
  ucp().ucp_worker_release_address(handle_, bytes);

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessage;
  handler.cb = on_message;
  handler.arg = this;
  status = ucp().ucp_worker_set_am_recv_handler(handle_, &handler);
  if (status != UCS_OK) return failure("ucp_worker_set_am_recv_handler", status);

  if (context_.poller == nullptr) return {};
  status = ucp().ucp_worker_get_efd(handle_, &event_fd_);
  if (status != UCS_OK) return failure("ucp_worker_get_efd", status);
  // Edge-triggered: nobody drains it while no wire is in use. Before every sleep arm() has seen that nothing was left.
  return context_.poller->add(event_fd_, EPOLLIN | EPOLLET);
}

Worker::~Worker() {
  if (forked()) {
    for (NoteStream& each : leaving_) each.abandon();
    return;
  }
  linger();
  if (event_fd_ >= 0) context_.poller->remove(event_fd_);
  if (abandoned_) {
    log(LogLevel::warn, "ucx: what UCX had under way did not end in time; its worker stays in memory");
    new std::shared_ptr<Context>(ucx_);
    new std::deque<Operation>(std::move(operations_));
    return;
  }
  for (Endpoint& endpoint : endpoints_) close(endpoint);
  // Now and then UCX 1.13 crashes over tcp when a worker that was broken off makes progress.
  if (!broken_ || shares_memory(*context_.config)) settle();
  ucp().ucp_worker_destroy(handle_);
}

bool Worker::progress() {
  if (stopped_) return false;
  armed_ = called_ = false;
  return ucp().ucp_worker_progress(handle_) != 0 || called_;
}

bool Worker::arm() {
  if (armed_ || stopped_) return true;
  if (progress() || ucp().ucp_worker_arm(handle_) != UCS_OK) return false;
  armed_ = true;
  return true;
}

Result<Endpoint*> Worker::endpoint(int peer, const std::string& address) {
  Endpoint& endpoint = endpoints_[static_cast<size_t>(peer)];
  if (endpoint.handle != nullptr) return &endpoint;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_error, &endpoint};
  if (const ucs_status_t status = ucp().ucp_ep_create(handle_, &params, &endpoint.handle); status != UCS_OK) {
    endpoint.handle = nullptr;
    return error(weftSystemError, "UCX has no way to rank {}: {}", peer, text(status));
  }
  return &endpoint;
}

void Worker::attach(int peer, UcxWire& wire) { endpoints_[static_cast<size_t>(peer)].wire = &wire; }

void Worker::detach(int peer, UcxWire& wire) {
  Endpoint& endpoint = endpoints_[static_cast<size_t>(peer)];
  if (endpoint.wire == &wire) endpoint.wire = nullptr;
  for (Operation& operation : operations_) {
    if (operation.wire == &wire) operation.wire = nullptr;
  }
}

void Worker::called(void* request) {
  called_ = true;
  ucp().ucp_request_free(request);
}

ucs_status_t Worker::on_message(void* self, const void* header, size_t header_bytes, void* data, size_t length,
                                const ucp_am_recv_param_t* param) {
  auto& worker = *static_cast<Worker*>(self);
  worker.called_ = true;
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const ucs_status_t no = rendezvous ? UCS_ERR_REJECTED : UCS_OK;
  Header read;
  if (header_bytes != sizeof read) return no;
  std::memcpy(&read, header, sizeof read);
  if (read.from < 0 || static_cast<size_t>(read.from) >= worker.endpoints_.size()) return no;
  UcxWire* wire = worker.endpoints_[static_cast<size_t>(read.from)].wire;
  if (wire == nullptr || !wire->trusts(read)) {
    log(LogLevel::debug, "ucx: dropped a message in the name of rank {}", read.from);
    return no;
  }
  return wire->incoming(read, data, length, rendezvous);
}

void Worker::on_error(void* at, ucp_ep_h /*handle*/, ucs_status_t status) {
  const auto& endpoint = *static_cast<Endpoint*>(at);
  if (endpoint.wire != nullptr) endpoint.wire->endpoint_failed(status);
}

void Worker::wait(ucs_status_ptr_t request, Deadline deadline) {
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucp().ucp_request_check_status(request) == UCS_INPROGRESS && !stopped_ && !deadline.passed()) {
    if (!progress()) std::this_thread::yield();
  }
  ucp().ucp_request_free(request);
}

void Worker::flush(Endpoint& endpoint, Deadline deadline) {
  if (endpoint.handle == nullptr) return;
  const ucp_request_param_t param{};
  wait(ucp().ucp_ep_flush_nbx(endpoint.handle, &param), deadline);
}

void Worker::close(Endpoint& endpoint) {
  if (endpoint.handle == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  wait(ucp().ucp_ep_close_nbx(std::exchange(endpoint.handle, nullptr), &param), Deadline::after(kCloseTime));
}

// UCX aborts when a worker is taken down with the end of a flush of cma outstanding. It takes a call or two.
void Worker::settle() {
  const Deadline deadline = Deadline::after(kCloseTime);
  for (int idle = 0; idle < kIdleCalls && !deadline.passed(); ++idle) {
    if (progress()) idle = 0;
  }
}

void Worker::linger() {
  const Deadline deadline = Deadline::after(kLinger);
  const auto waits = [](NoteStream& control) {
    Note note;
    while (const auto bytes = control.next()) {
      if (!unpack(*bytes, &note)) continue;
      if (note.kind == Note::Kind::farewell || note.kind == Note::Kind::bye) control.close();
    }
    return control.is_open() && !control.ended();
  };
  while (std::count_if(leaving_.begin(), leaving_.end(), waits) > 0 && !stopped_ && !deadline.passed()) {
    if (!progress()) std::this_thread::sleep_for(milliseconds(1));
  }
  leaving_.clear();
}

Operation& Worker::take(UcxWire& wire) {
  if (free_ == nullptr) free_ = &operations_.emplace_back();
  Operation& operation = *free_;
  free_ = std::exchange(operation.next, nullptr);
  operation.worker = this;
  operation.wire = &wire;
  operation.send = nullptr;
  operation.recv = nullptr;
  return operation;
}

void Worker::give_back(Operation& operation) {
  if (operation.scratch.data != nullptr && scratch_bytes_ + operation.scratch.capacity <= kKeptScratch) {
    scratch_bytes_ += operation.scratch.capacity;
    scratch_.push_back(std::move(operation.scratch));
  }
  operation.scratch = {};
  operation.wire = nullptr;
  operation.next = std::exchange(free_, &operation);
}

// The least of those that are large enough.
Scratch Worker::take_scratch(size_t bytes) {
  auto best = scratch_.end();
  for (auto each = scratch_.begin(); each != scratch_.end(); ++each) {
    if (each->capacity >= bytes && (best == scratch_.end() || each->capacity < best->capacity)) best = each;
  }
  if (best == scratch_.end()) {
    const size_t capacity = std::bit_ceil(std::max<size_t>(bytes, 4096));
    return {std::unique_ptr<std::byte[]>(new std::byte[capacity]), capacity};
  }
  Scratch scratch = std::move(*best);
  scratch_.erase(best);
  scratch_bytes_ -= scratch.capacity;
  return scratch;
}

}  // namespace weft::ucx
