#include "transports/ucx/context.hpp"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "status/process.hpp"

namespace weft::ucx {
namespace {

// What differs from UCX's defaults, unless the user has set the variable. ucp_config_modify has a transport's settings
// by their names in its own table.
struct Setting {
  const char* variable;
  const char* name;
  const char* value;
};
constexpr Setting kSettings[] = {
    // Or else no shared memory, and no process_vm_readv, for endpoints that may be closed by force. (UCX does not take
    // back what it has told a peer of our memory; UcxWire::accept_landed() sees to that.)
    {"UCX_MM_ERROR_HANDLING", "MM_ERROR_HANDLING", "y"},
    {"UCX_CMA_MEMORY_INVALIDATE", "MEMORY_INVALIDATE", "y"},
    // How much of a message one system call of TCP takes. Half as fast with UCX's 64K where endpoints may be closed.
    {"UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "256K"},
    // A peer's death is seen at once on the wire's own connection.
    {"UCX_KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "inf"},
};

Result<ucp_context_h> create(const Library& ucp, const std::string& transports) {
  const auto failure = [&](const char* what, ucs_status_t status) {
    return error(weftSystemError, "{}: {}", what, ucp.ucs_status_string(status));
  };
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return failure("ucp_config_read", status);
  for (const Setting& setting : kSettings) {
    if (std::getenv(setting.variable) == nullptr) ucp.ucp_config_modify(config, setting.name, setting.value);
  }
  if (!transports.empty()) status = ucp.ucp_config_modify(config, "TLS", transports.c_str());
  ucp_context_h handle = nullptr;
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    status = ucp.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle);
  }
  ucp.ucp_config_release(config);
  if (status != UCS_OK) return failure(transports.empty() ? "UCX" : ("UCX with " + transports).c_str(), status);
  return handle;
}

}  // namespace

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}
SignalsBlocked::~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

Context::Context(const Library* ucp, ucp_context_h handle) : ucp_(ucp), handle_(handle), forks_(forks()) {}

Context::~Context() {
  if (!forked()) ucp_->ucp_cleanup(handle_);
}

bool Context::forked() const { return forks_ != forks(); }

Result<std::shared_ptr<Context>> Context::open(const Config& config) {
  static std::mutex mutex;
  static auto& contexts = *new std::map<std::string, std::weak_ptr<Context>>;  // by transports
  std::lock_guard lock(mutex);
  for (auto& [transports, known] : contexts) {
    const auto context = known.lock();
    if (context == nullptr) continue;
    if (context->forked()) {
      return error(weftInvalidUsage,
                   "UCX was in use when this process was forked off, and does not work in both: start a new program");
    }
    if (transports == config.ucx_tls) return context;
  }
  auto ucp = library();
  if (!ucp.ok()) return ucp.status();
  const SignalsBlocked blocked;
  auto handle = create(**ucp, config.ucx_tls);
  if (!handle.ok()) return handle.status();
  auto context = std::make_shared<Context>(*ucp, *handle);
  contexts[config.ucx_tls] = context;
  return context;
}

}  // namespace weft::ucx
