// libucp, loaded when the transport is first made. Not linked: as it loads, libucs reads its variables, installs
// handlers of error signals and of SIGHUP, and starts to print; what Weft would rather have must be there before.
#pragma once

#include <ucp/api/ucp.h>

#include "status/status.hpp"

namespace weft::ucx {

#define WEFT_UCP_FUNCTIONS(X)       \
  X(ucp_get_version_string)         \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_context_print_info)         \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_get_address)         \
  X(ucp_worker_release_address)     \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_progress)            \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_flush_nbx)               \
  X(ucp_am_send_nbx)                \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_am_data_release)            \
  X(ucp_request_check_status)       \
  X(ucp_request_free)               \
  X(ucs_status_string)

struct Library {
#define WEFT_UCP_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_UCP_FUNCTIONS(WEFT_UCP_MEMBER)
#undef WEFT_UCP_MEMBER
};

// Loads it the first time; it stays. Where the process has it already, it is taken as it is.
Result<const Library*> library();

}  // namespace weft::ucx
