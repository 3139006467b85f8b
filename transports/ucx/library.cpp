#include "transports/ucx/library.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "log/log.hpp"

namespace weft::ucx {
namespace {

constexpr char kFile[] = "libucp.so.0";

// How UCX is to behave inside of Weft; what the user has set stays.
constexpr const char* kManners[] = {
    "UCX_HANDLE_ERRORS=none",  // no handlers of SIGSEGV and its like
    "UCX_DEBUG_SIGNO=0",       // nor of SIGHUP
    "UCX_LOG_LEVEL=fatal",     // what goes wrong is a status, and Weft's to tell
    "UCX_VFS_ENABLE=n",        // no thread for a file system of statistics
};

// Beside these: UCX watches memory that goes away, by patching the C library's code. Only what registers memory needs
// that.
constexpr char kNoWatch[] = "UCX_MEM_EVENTS=n";

bool has_devices() {
  std::error_code ignored;
  for (const char* devices : {"/sys/class/infiniband", "/sys/class/kfd", "/proc/driver/nvidia/gpus"}) {
    if (std::filesystem::directory_iterator(devices, ignored) != std::filesystem::directory_iterator()) return true;
  }
  return false;
}

// While it lives, the environment has these, too. It is another array and not setenv(), which may free the array
// that another thread is reading; for the same reason the new one is not freed. Where somebody changes the environment
// meanwhile, the C library goes on with a copy of ours, and our entries are taken out of that.
class Manners {
 public:
  Manners() : before_(environ) {
    static auto& entries = *new std::vector<char*>;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) entries.push_back(*entry);
    const auto add = [&](const char* entry) {
      const std::string name(entry, std::strchr(entry, '='));
      if (std::getenv(name.c_str()) != nullptr) return;
      entries.push_back(const_cast<char*>(entry));
      added_.push_back(name);
    };
    for (const char* entry : kManners) add(entry);
    if (!has_devices()) add(kNoWatch);
    entries.push_back(nullptr);
    environ = ours_ = entries.data();
  }
  ~Manners() {
    if (environ == ours_) {
      environ = before_;
    } else {
      for (const std::string& name : added_) ::unsetenv(name.c_str());
    }
  }
  Manners(const Manners&) = delete;
  Manners& operator=(const Manners&) = delete;

 private:
  char** before_;
  char** ours_;
  std::vector<std::string> added_;
};

Result<const Library*> load() {
  void* handle = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) {
    const Manners manners;
    handle = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  if (handle == nullptr) return error(weftSystemError, "{}", ::dlerror());
  static Library library;
#define WEFT_UCP_LOAD(name)                                                   \
  library.name = reinterpret_cast<decltype(&::name)>(::dlsym(handle, #name)); \
  if (library.name == nullptr) return error(weftSystemError, "{}: {}", kFile, ::dlerror());
  WEFT_UCP_FUNCTIONS(WEFT_UCP_LOAD)
#undef WEFT_UCP_LOAD
  log(LogLevel::info, "UCX {}", library.ucp_get_version_string());
  return &library;
}

}  // namespace

Result<const Library*> library() {
  static std::mutex mutex;
  static const Library* loaded = nullptr;
  std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  auto now = load();
  if (now.ok()) loaded = *now;
  return now;
}

}  // namespace weft::ucx
