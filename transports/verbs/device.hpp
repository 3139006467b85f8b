// RDMA devices: which ports there are and which are used, and what a process holds of each device once, whatever the
// number of its communicators: context, protection domain, registered memory.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "transports/verbs/gid.hpp"
#include "transports/verbs/registrations.hpp"

namespace weft::verbs {

// A port, and why it is a rail of ours, or not.
struct Port {
  std::string device;
  uint8_t number = 1;
  bool ethernet = true;
  bool active = false;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  Gid gid;
  double gbits = 0;
  int numa = -1;
  bool used = false;
  std::string reason;

  std::string name() const { return device + ":" + std::to_string(number); }
};
// All ports of all devices that can be opened. An error: WEFT_VERBS_DEVICES names what there is not.
Result<std::vector<Port>> find_ports(const Config& config);

class Device {
 public:
  static Result<std::shared_ptr<Device>> open(const std::string& name, const Config& config,
                                              Registrations::FindRegion find_region);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const ibv_device_attr& limits() const { return limits_; }
  Registrations& memory() { return *memory_; }

  // Takes in what happened to the device. Any thread.
  void look();
  bool gone() const { return gone_.load(std::memory_order_acquire); }            // removed, or failed as a whole
  uint32_t changes() const { return changes_.load(std::memory_order_acquire); }  // of its ports' state
  Result<Port> port(uint8_t number, const Config& config) const;

 private:
  Device() = default;
  Status set_up(ibv_device* device, const Config& config, Registrations::FindRegion find_region);

  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_device_attr limits_{};
  std::unique_ptr<Registrations> memory_;
  std::mutex mutex_;
  std::atomic<bool> gone_{false};
  std::atomic<uint32_t> changes_{0};
};

// Registers with every right that a message needs. The error names the limit that is in the way.
Result<ibv_mr*> register_memory(ibv_pd* domain, void* base, size_t bytes, bool relaxed);

}  // namespace weft::verbs
