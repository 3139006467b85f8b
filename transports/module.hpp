// Transports in shared objects of their own (libweft-transport-NAME.so), loaded when they are asked for and are there:
// the library links none of what they need. A module is built together with the library and has its own copy of
// whatever it uses of it; what there must be one of in a process, it reaches through ModuleHost.
//
// They are looked for in WEFT_MODULE_DIR; without that, beside the file that holds this code (libweft.so, or a program
// that is linked with everything), and where that file's folder layout, installed or in a build, has them.
#pragma once

#include <cstdint>

#include "log/log.hpp"
#include "memory/regions.hpp"
#include "transports/module_abi.hpp"
#include "transports/transport.hpp"
#include "weft/weft.h"

#define WEFT_TEXT_OF_(x) #x
#define WEFT_TEXT_OF(x) WEFT_TEXT_OF_(x)
#define WEFT_VERSION_TEXT WEFT_TEXT_OF(WEFT_MAJOR) "." WEFT_TEXT_OF(WEFT_MINOR) "." WEFT_TEXT_OF(WEFT_PATCH)

namespace weft {

struct ModuleHost {
  LogTarget log;
  std::shared_ptr<const SharedRegion> (*find_region)(const void* pointer, size_t bytes) = nullptr;
};

struct TransportModule {
  uint32_t abi = kModuleAbi;      // differs as soon as anything that both sides see does
  const char* version = nullptr;  // of the Weft that it was built with
  // Once, before anything else.
  void (*attach)(const ModuleHost& host) = nullptr;
  Result<std::unique_ptr<Transport>> (*create)(const TransportContext& context) = nullptr;
  std::vector<DeviceReport> (*devices)(const Config& config) = nullptr;
};

// The one symbol that a module shows; each defines it, outside of the namespace.
inline constexpr char kModuleSymbol[] = "weft_transport_module";

// Loads the module the first time. The error says where it was looked for, or what is wrong with it.
Result<const TransportModule*> transport_module(const std::string& name);

}  // namespace weft

extern "C" __attribute__((visibility("default"))) const weft::TransportModule weft_transport_module;
