// The ucx transport: one UCP worker per communicator. Its address is that of a listening socket, where peers prove who
// they are and leave their notes, and the worker's.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "bootstrap/bytes.hpp"
#include "bootstrap/listener.hpp"
#include "log/log.hpp"
#include "transports/connector.hpp"
#include "transports/module.hpp"
#include "transports/ucx/wire.hpp"

namespace weft {
namespace {

using ucx::UcxWire;
using ucx::Worker;

class UcxTransport : public Transport {
 public:
  UcxTransport(const TransportContext& context, std::shared_ptr<Worker> worker, Listener& listener)
      : context_(context),
        worker_(std::move(worker)),
        connector_(
            context, 'u', listener.release(),
            [this](const Hello& hello, bool accepted, Fd fd) { ready(hello, accepted, std::move(fd)); },
            [this](const Hello& hello, const Status& why) { failed(hello, why); }) {
    put_text(address_, listener.address());
    address_ += worker_->address();
  }

  std::string_view name() const override { return "ucx"; }
  Capability capability() const override {
    return {.latency_us = 3, .bandwidth_gbs = 5, .eager_bytes = static_cast<size_t>(context_.config->ucx_rndv_bytes)};
  }
  std::string address() const override { return address_; }
  bool reaches(int peer, const std::string& address) override;
  std::unique_ptr<Wire> connect(int peer, const std::string& address, Deadline deadline) override;
  bool progress() override;

 private:
  void ready(const Hello& hello, bool accepted, Fd fd);
  void failed(const Hello& hello, const Status& why);
  std::unique_ptr<UcxWire> make(int peer);

  TransportContext context_;
  std::shared_ptr<Worker> worker_;
  std::string address_;
  std::map<int, std::unique_ptr<UcxWire>> early_;  // of peers that came before theirs was asked for
  Connector connector_;
};

struct Address {
  explicit Address(const std::string& bytes) : reader(bytes), listener(reader.text()), worker(reader.rest()) {}
  ByteReader reader;
  std::string listener, worker;
};

bool UcxTransport::reaches(int peer, const std::string& address) {
  const auto endpoint = worker_->endpoint(peer, Address(address).worker);
  if (!endpoint.ok()) log(LogLevel::info, "ucx: {}", endpoint.status().message());
  return endpoint.ok();
}

std::unique_ptr<UcxWire> UcxTransport::make(int peer) {
  return std::make_unique<UcxWire>(peer, worker_, static_cast<size_t>(context_.config->ucx_rndv_bytes));
}

std::unique_ptr<Wire> UcxTransport::connect(int peer, const std::string& address, Deadline deadline) {
  const Address to(address);
  std::unique_ptr<UcxWire> wire;
  if (const auto early = early_.find(peer); early != early_.end()) {
    wire = std::move(early->second);
    early_.erase(early);
  } else {
    wire = make(peer);
  }
  wire->reach(to.worker);
  if (peer > context_.rank) return wire;
  const Status dialled = connector_.dial(peer, 1, to.listener, deadline);
  if (!dialled.ok()) wire->connection_failed(dialled.message());
  return wire;
}

bool UcxTransport::progress() {
  const bool moved = connector_.progress();
  for (const auto& [peer, wire] : early_) wire->tick();
  if (const Status starving = connector_.starving(); !starving.ok()) {
    for (int peer = context_.rank + 1; peer < context_.size; ++peer) {
      UcxWire* wire = worker_->wire(peer);
      if (wire != nullptr && !wire->connected()) wire->connection_failed(starving.message());
    }
  }
  return moved;
}

// Only the higher rank dials.
void UcxTransport::ready(const Hello& hello, bool accepted, Fd fd) {
  const int peer = accepted ? hello.from : hello.to;
  if (accepted && peer < context_.rank) return;
  UcxWire* wire = worker_->wire(peer);
  if (wire == nullptr && !accepted) return;  // it is gone meanwhile
  if (wire == nullptr) wire = (early_[peer] = make(peer)).get();
  wire->adopt(std::move(fd));
}

void UcxTransport::failed(const Hello& hello, const Status& why) {
  if (UcxWire* wire = worker_->wire(hello.to)) wire->connection_failed(why.message());
}

Result<std::unique_ptr<Transport>> create(const TransportContext& context) {
  auto worker = Worker::create(context);
  if (!worker.ok()) return worker.status();
  Result<std::shared_ptr<Listener>> listener = Listener::open(*context.config);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<Transport>(new UcxTransport(context, *worker, **listener));
}

// UCX tells its resources in lines "# resource 3 : md 2 dev 1 flags -- tcp/eth0"; there is no call for them.
std::vector<DeviceReport> devices(const Config& config) {
  const auto context = ucx::Context::open(config);
  if (!context.ok()) return {{.name = "ucx", .reason = context.status().message(), .facts = {}}};
  const ucx::Library& ucp = context.value()->ucp();
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  ucp.ucp_context_print_info(context.value()->handle(), stream);
  std::fclose(stream);
  std::vector<DeviceReport> reports;
  std::istringstream lines(std::string(text, bytes));
  std::free(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("resource ") == std::string::npos) continue;
    reports.push_back({.name = line.substr(line.find_last_of(' ') + 1),
                       .used = true,
                       .reason = "UCX chooses among these for each peer",
                       .facts = {{"UCX", ucp.ucp_get_version_string()}}});
  }
  return reports;
}

void attach(const ModuleHost& host) { log_redirect(host.log); }

}  // namespace
}  // namespace weft

const weft::TransportModule weft_transport_module = {
    .version = WEFT_VERSION_TEXT,
    .attach = weft::attach,
    .create = weft::create,
    .devices = weft::devices,
};
