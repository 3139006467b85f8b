#include "transports/module.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <mutex>

namespace weft {
namespace {

// Where this code lies.
std::filesystem::path own_folder() {
  Dl_info info;
  if (::dladdr(reinterpret_cast<const void*>(&transport_module), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code problem;
  // A program is named as it was called.
  std::filesystem::path file = std::filesystem::canonical(info.dli_fname, problem);
  if (problem) file = std::filesystem::read_symlink("/proc/self/exe", problem);
  return problem ? std::filesystem::path() : file.parent_path();
}

std::vector<std::filesystem::path> folders() {
  const auto& settings = config();
  if (settings.ok() && !settings.value().module_dir.empty()) return {settings.value().module_dir};
  const std::filesystem::path own = own_folder();
  // Beside an installed library; from an installed program; in a build.
  return {own, own / "weft", own / WEFT_MODULES_FROM_PROGRAMS, own / "../../transports"};
}

Result<const TransportModule*> load(const std::string& name) {
  const std::string file = "libweft-transport-" + name + ".so";
  std::string looked;
  for (const std::filesystem::path& folder : folders()) {
    const std::string path = (folder / file).lexically_normal();
    looked += (looked.empty() ? "" : ", ") + path;
    if (::access(path.c_str(), F_OK) != 0) continue;
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return error(weftSystemError, "{}", ::dlerror());
    const auto* module = static_cast<const TransportModule*>(::dlsym(handle, kModuleSymbol));
    if (module == nullptr || module->abi != kModuleAbi || std::string_view(module->version) != WEFT_VERSION_TEXT) {
      ::dlclose(handle);
      return error(weftSystemError, "{} was not built with this Weft ({})", path, WEFT_VERSION_TEXT);
    }
    module->attach({.log = log_target(), .find_region = find_region});
    return module;
  }
  return error(weftSystemError, "{} is in none of: {}", file, looked);
}

}  // namespace

Result<const TransportModule*> transport_module(const std::string& name) {
  static std::mutex mutex;
  static auto* loaded = new std::map<std::string, const TransportModule*>;
  std::lock_guard lock(mutex);
  if (const auto found = loaded->find(name); found != loaded->end()) return found->second;
  auto module = load(name);
  if (module.ok()) loaded->emplace(name, *module);
  return module;
}

}  // namespace weft
