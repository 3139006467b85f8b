// The verbs transport: rails of this process, a listening socket for control connections, wires.
#include "bootstrap/listener.hpp"
#include "log/log.hpp"
#include "transports/module.hpp"
#include "transports/peer_wires.hpp"
#include "transports/verbs/connection_manager.hpp"
#include "transports/verbs/wire.hpp"

namespace weft {
namespace verbs {
namespace {

Registrations::FindRegion find_region_of_host = nullptr;

class VerbsTransport : public Transport {
 public:
  VerbsTransport(const TransportContext& context, std::shared_ptr<Fabric> fabric, Listener& listener)
      : context_(context),
        fabric_(std::move(fabric)),
        address_(listener.address()),
        connector_(
            context, 'v', listener.release(),
            [this](const Hello& hello, bool accepted, Fd fd) {
              wires_->ready(context_.rank, hello, accepted, std::move(fd));
            },
            [this](const Hello& hello, const Status& why) {
              if (VerbsWire* wire = wires_->find(hello.to)) wire->connection_failed(why.message());
            }) {}

  std::string_view name() const override { return "verbs"; }
  Capability capability() const override {
    double gbits = 0;
    for (const Rail& rail : fabric_->rails()) gbits += rail.port.gbits;
    return {.latency_us = 2, .bandwidth_gbs = gbits / 8, .eager_bytes = kEagerBytes, .registers = true};
  }
  std::string address() const override { return address_; }
  bool reaches(int, const std::string&) override { return true; }
  std::unique_ptr<Wire> connect(int peer, const std::string& address, Deadline deadline) override;
  bool progress() override;
  std::vector<RailCounters> rails() const override { return fabric_->counters(); }
  void prepare(const Piece& memory) override;
  Status pin(const Piece& memory) override;
  void unpin(const Piece& memory) override;

 private:
  TransportContext context_;
  std::shared_ptr<Fabric> fabric_;
  std::string address_;
  std::shared_ptr<PeerWires<VerbsWire>> wires_ = std::make_shared<PeerWires<VerbsWire>>();
  Connector connector_;
};

std::unique_ptr<Wire> VerbsTransport::connect(int peer, const std::string& address, Deadline deadline) {
  auto wire = std::make_unique<VerbsWire>(peer, fabric_, deadline, wires_->leaver(wires_, peer));
  wires_->join(*wire);
  if (peer > context_.rank) return wire;
  const Status dialled = connector_.dial(peer, 1, address, deadline);
  if (!dialled.ok()) wire->connection_failed(dialled.message());
  return wire;
}

bool VerbsTransport::progress() {
  const bool moved = connector_.progress();
  fabric_->progress_connections();
  wires_->starve(context_.rank, connector_.starving());
  return moved;
}

void VerbsTransport::prepare(const Piece& memory) {
  if (memory.bytes <= kEagerBytes) return;
  for (Rail& rail : fabric_->rails()) {
    if (rail.device == nullptr) continue;
    auto entry = rail.device->memory().take(memory.data, memory.bytes);
    if (entry.ok()) {
      rail.device->memory().release(*entry);
    } else {
      log(LogLevel::debug, "verbs: {}", entry.status().message());
    }
  }
}

Status VerbsTransport::pin(const Piece& memory) {
  for (Rail& rail : fabric_->rails()) {
    if (rail.device != nullptr) WEFT_RETURN_IF_ERROR(rail.device->memory().pin(memory.data, memory.bytes));
  }
  return {};
}

void VerbsTransport::unpin(const Piece& memory) {
  for (Rail& rail : fabric_->rails()) {
    if (rail.device != nullptr) rail.device->memory().unpin(memory.data);
  }
}

Result<std::unique_ptr<Transport>> create(const TransportContext& context) {
  auto fabric = Fabric::create(context, find_region_of_host);
  if (!fabric.ok()) return fabric.status();
  Result<std::shared_ptr<Listener>> listener = Listener::open(*context.config);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<Transport>(new VerbsTransport(context, std::move(*fabric), **listener));
}

std::vector<DeviceReport> devices(const Config& config) {
  std::vector<DeviceReport> reports;
  const auto ports = find_ports(config);
  if (!ports.ok()) return {{.name = "WEFT_VERBS_DEVICES", .reason = ports.status().message()}};
  for (const Port& port : ports.value()) {
    DeviceReport report{.name = port.name(), .used = port.used, .reason = port.reason};
    report.facts = {{"link", port.ethernet ? "Ethernet (RoCE)" : "InfiniBand"},
                    {"state", port.active ? "active" : "not active"},
                    {"MTU", std::to_string(128 << port.mtu)},
                    {"Gbit/s", fmt::format("{}", port.gbits)}};
    if (!port.ethernet) report.facts.emplace_back("LID", std::to_string(port.lid));
    if (port.gid.index >= 0) {
      const char* type = port.gid.type == GidType::roce_v2   ? "RoCE v2"
                         : port.gid.type == GidType::roce_v1 ? "RoCE v1"
                                                             : "IB";
      report.facts.emplace_back("GID", fmt::format("{}: {} ({})", port.gid.index, to_text(port.gid.raw), type));
    }
    if (port.numa >= 0) report.facts.emplace_back("NUMA node", std::to_string(port.numa));
    reports.push_back(std::move(report));
  }
  return reports;
}

void attach(const ModuleHost& host) {
  log_redirect(host.log);
  find_region_of_host = host.find_region;
}

}  // namespace
}  // namespace verbs
}  // namespace weft

const weft::TransportModule weft_transport_module = {
    .version = WEFT_VERSION_TEXT,
    .attach = weft::verbs::attach,
    .create = weft::verbs::create,
    .devices = weft::verbs::devices,
};
