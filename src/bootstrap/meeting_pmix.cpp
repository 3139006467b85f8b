#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "bootstrap/meeting.hpp"

#ifdef WEFT_HAVE_PMIX
#include <pmix.h>

namespace weft {
namespace {

struct Library {
  decltype(&PMIx_Init) init = nullptr;
  decltype(&PMIx_Finalize) finalize = nullptr;
  decltype(&PMIx_Put) put = nullptr;
  decltype(&PMIx_Commit) commit = nullptr;
  decltype(&PMIx_Get) get = nullptr;

  static Result<Library> load() {
    // Stays loaded: it has threads of its own, and MPI may use it too.
    void* handle = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return error(weftSystemError, "{}", ::dlerror());
    Library library;
    const auto find = [handle](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle, name));
      return function != nullptr;
    };
    if (!find(library.init, "PMIx_Init") || !find(library.finalize, "PMIx_Finalize") ||
        !find(library.put, "PMIx_Put") || !find(library.commit, "PMIx_Commit") || !find(library.get, "PMIx_Get")) {
      return error(weftSystemError, "libpmix.so.2 lacks a function");
    }
    return library;
  }
};

// Lasts until the process exits: the launcher calls a job failed where a process ends between init and finalize, and
// Open MPI cannot start in a process where PMIx was finalised before. PMIx counts its users, so MPI may come and go
// meanwhile.
class Session {
 public:
  explicit Session(const Library& library) : library_(library), rc_(library.init(&self_, nullptr, 0)) {}
  ~Session() {
    if (rc_ == PMIX_SUCCESS && ::getpid() == pid_) library_.finalize(nullptr, 0);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  pmix_status_t rc() const { return rc_; }
  const pmix_proc_t& self() const { return self_; }

 private:
  const Library& library_;
  const pid_t pid_ = ::getpid();
  pmix_proc_t self_{};
  pmix_status_t rc_;
};

Result<std::string> get(const Library& library, pmix_proc_t root, const std::string& key, Deadline deadline) {
  root.rank = 0;
  pmix_info_t limit{};
  std::strncpy(limit.key, PMIX_TIMEOUT, sizeof limit.key - 1);
  limit.value.type = PMIX_INT;
  limit.value.data.integer = 1;  // seconds
  while (true) {
    pmix_value_t* value = nullptr;
    const pmix_status_t rc = library.get(&root, key.c_str(), &limit, 1, &value);
    if (rc == PMIX_SUCCESS && value != nullptr) {
      const std::string text = value->type == PMIX_STRING ? value->data.string : "";
      std::free(value->data.string);
      std::free(value);
      return text;
    }
    if (deadline.passed()) {
      return error(weftTimeout, "timed out: rank 0 published no address through PMIx (status {})", rc);
    }
    timespec pause{0, 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace

Result<std::string> exchange_by_pmix(const std::string& key, const std::string& mine, Deadline deadline) {
  static const Result<Library> library = Library::load();
  if (!library.ok()) return library.status();
  static const Session session(library.value());
  if (session.rc() != PMIX_SUCCESS) return error(weftSystemError, "PMIx_Init failed with status {}", session.rc());
  if (mine.empty()) return get(library.value(), session.self(), key, deadline);
  pmix_value_t value{};
  value.type = PMIX_STRING;
  std::string text = mine;
  value.data.string = text.data();
  pmix_status_t rc = library.value().put(PMIX_GLOBAL, key.c_str(), &value);
  if (rc == PMIX_SUCCESS) rc = library.value().commit();
  if (rc != PMIX_SUCCESS) return error(weftSystemError, "PMIx_Put failed with status {}", rc);
  return mine;
}

}  // namespace weft

#else

namespace weft {

Result<std::string> exchange_by_pmix(const std::string&, const std::string&, Deadline) {
  return error(weftSystemError, "this Weft was built without PMIx");
}

}  // namespace weft

#endif
