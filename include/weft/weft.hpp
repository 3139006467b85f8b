// Weft for C++20: weft.h with owners, ranges and exceptions. Header only; link with -lweft.
//
//   weft::Communicator comm = weft::Communicator::from_env();
//   std::vector<float> gradient(1 << 20, 1.0f);
//   comm.all_reduce(gradient, weftAvg);
//
// What weft.h says of each call holds here; this header adds:
//
// - Owners. Communicator, Stream, Buffer, Group, Registration, Window and PreMulSum release what they hold when they
//   go. They move and do not copy. raw() gives the C handle for what has no wrapper.
// - Ranges. Buffers are contiguous ranges (std::vector, std::span, std::array, Buffer); counts and the data type come
//   from them, and a size that does not fit is an Error with weftInvalidArgument before anything is sent.
// - Exceptions. Every failure throws weft::Error with the result code and the library's sentence. weftInProgress, from
//   a communicator with blocking = false, is no failure.
// - Types. Integers of 8, 32 and 64 bits, float, double, std::byte, and the tag types float16, bfloat16, float8e4m3,
//   float8e5m2, which only store bits. A type of your own: specialise weft::TypeOf<T>.
//
// The last argument of a data call is a stream: nothing given blocks until the result is in place; with a Stream the
// call returns at once and the buffers must stay alive and untouched until Stream::synchronize.
#ifndef WEFT_WEFT_HPP_
#define WEFT_WEFT_HPP_

#if __cplusplus < 202002L
#error "weft.hpp needs C++20 (-std=c++20); weft.h is for C and any C++"
#endif

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/weft.h"

namespace weft {
// Inline, so that users write weft::Stream while the symbols are distinct from any other weft::Stream.
inline namespace cpp {

// ---- Errors ---------------------------------------------------------------------------------------------------------

class Error : public std::runtime_error {
 public:
  Error(weftResult_t code, const std::string& what) : std::runtime_error(what), code_(code) {}
  weftResult_t code() const noexcept { return code_; }

 private:
  weftResult_t code_;
};

// Throws Error with the call's name, the code's name and weftGetLastError(comm), unless result is weftSuccess or
// weftInProgress.
inline void check(weftResult_t result, std::string_view call, weftComm_t comm = nullptr) {
  if (result == weftSuccess || result == weftInProgress) return;
  std::string text = std::string(call) + ": " + weftGetErrorString(result);
  const char* detail = weftGetLastError(comm);
  if ((detail == nullptr || *detail == '\0') && comm != nullptr) detail = weftGetLastError(nullptr);
  if (detail != nullptr && *detail != '\0') text += std::string(": ") + detail;
  throw Error(result, text);
}

// ---- Types ----------------------------------------------------------------------------------------------------------

// Storage of the types that C++20 has no name for. They hold bits and do no arithmetic.
struct float16 {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};
struct float8e4m3 {
  std::uint8_t bits;
};
struct float8e5m2 {
  std::uint8_t bits;
};

// The Weft type of a C++ type, as TypeOf<T>::value. Specialise it for a type of your own with one of Weft's layouts.
template <typename T>
struct TypeOf {};
template <std::integral T>
requires(!std::same_as<T, bool> && (sizeof(T) == 1 || sizeof(T) == 4 || sizeof(T) == 8)) struct TypeOf<T> {
  static constexpr weftDataType_t value = sizeof(T) == 1   ? (std::is_signed_v<T> ? weftInt8 : weftUint8)
                                          : sizeof(T) == 4 ? (std::is_signed_v<T> ? weftInt32 : weftUint32)
                                                           : (std::is_signed_v<T> ? weftInt64 : weftUint64);
};
template <>
struct TypeOf<std::byte> {
  static constexpr weftDataType_t value = weftUint8;
};
template <>
struct TypeOf<float> {
  static constexpr weftDataType_t value = weftFloat32;
};
template <>
struct TypeOf<double> {
  static constexpr weftDataType_t value = weftFloat64;
};
template <>
struct TypeOf<float16> {
  static constexpr weftDataType_t value = weftFloat16;
};
template <>
struct TypeOf<bfloat16> {
  static constexpr weftDataType_t value = weftBfloat16;
};
template <>
struct TypeOf<float8e4m3> {
  static constexpr weftDataType_t value = weftFloat8e4m3;
};
template <>
struct TypeOf<float8e5m2> {
  static constexpr weftDataType_t value = weftFloat8e5m2;
};

// A type that Weft carries.
template <typename T>
concept Element = std::is_trivially_copyable_v<T> && requires {
  { TypeOf<T>::value } -> std::convertible_to<weftDataType_t>;
};
template <Element T>
inline constexpr weftDataType_t type_of = TypeOf<T>::value;

// A buffer to read from, and one to write to.
template <typename R>
concept Source =
    std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && Element<std::ranges::range_value_t<R>>;
template <typename R>
concept Target = Source<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
template <typename A, typename B>
concept SameElement = std::same_as<std::ranges::range_value_t<A>, std::ranges::range_value_t<B>>;

// Counts or displacements of a v-variant, one per rank, in elements.
using Counts = std::span<const std::size_t>;

// ---- Configuration, ids ---------------------------------------------------------------------------------------------

// weftConfig_t with owned strings. What is left alone takes the value of its environment variable, or the default.
struct Config {
  std::optional<bool> blocking = {};
  std::optional<std::chrono::milliseconds> timeout = {};
  std::optional<std::chrono::milliseconds> init_timeout = {};
  weftAccumulate_t accumulate = weftAccumulateDefault;
  std::string transport = {};
  std::string algo = {};
  std::string net_name = {};
  std::string comm_name = {};

  // Points into this Config, which must outlive it.
  weftConfig_t raw() const {
    weftConfig_t c = WEFT_CONFIG_INITIALIZER;
    auto text = [](const std::string& s) { return s.empty() ? nullptr : s.c_str(); };
    if (blocking) c.blocking = *blocking ? 1 : 0;
    if (timeout) c.timeoutMs = timeout->count();
    if (init_timeout) c.initTimeoutMs = init_timeout->count();
    if (accumulate != weftAccumulateDefault) c.accumulate = accumulate;
    c.transport = text(transport);
    c.algo = text(algo);
    c.netName = text(net_name);
    c.commName = text(comm_name);
    return c;
  }
};

// An id that one process makes and hands to all others, who join with Communicator::join.
inline weftUniqueId make_unique_id() {
  weftUniqueId id;
  check(weftGetUniqueId(&id), "weftGetUniqueId");
  return id;
}

// The version code of the library that is loaded: major * 10000 + minor * 100 + patch.
inline int library_version() {
  int version = 0;
  check(weftGetVersion(&version), "weftGetVersion");
  return version;
}

// ---- Streams, groups, memory ----------------------------------------------------------------------------------------

// An in-order asynchronous queue on the host.
class Stream {
 public:
  Stream() { check(weftStreamCreate(&stream_), "weftStreamCreate"); }
  // Waits for what is queued. An error that nobody synchronised for is lost here.
  ~Stream() {
    if (stream_ != nullptr) weftStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  // Waits for all that was queued, and throws the first error since the last synchronisation.
  void synchronize() { check(weftStreamSynchronize(stream_), "weftStreamSynchronize"); }
  // True when nothing is left to do.
  bool idle() const {
    weftResult_t result = weftStreamQuery(stream_);
    check(result, "weftStreamQuery");
    return result == weftSuccess;
  }
  weftStream_t raw() const noexcept { return stream_; }
  operator weftStream_t() const noexcept { return stream_; }  // NOLINT: a Stream is given where a stream is asked for

 private:
  weftStream_t stream_ = nullptr;
};

// Calls made while a Group lives are issued together by end(). Without end(), as when an exception passes, the
// destructor ends the group and its errors are lost.
class Group {
 public:
  Group() { check(weftGroupStart(), "weftGroupStart"); }
  ~Group() {
    if (open_) weftGroupEnd();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end() {
    open_ = false;
    check(weftGroupEnd(), "weftGroupEnd");
  }

 private:
  bool open_ = true;
};

// Memory from weftMemAlloc, which the other processes of this host can map, so that collectives read and
// write it in place.
template <Element T>
class Buffer {
 public:
  using value_type = T;

  Buffer() = default;
  explicit Buffer(std::size_t size) : size_(size) {
    if (size > SIZE_MAX / sizeof(T)) throw Error(weftInvalidArgument, "Buffer: " + std::to_string(size) + " elements");
    void* data = nullptr;
    if (size > 0) check(weftMemAlloc(&data, size * sizeof(T)), "weftMemAlloc");
    data_ = static_cast<T*>(data);
  }
  ~Buffer() {
    if (data_ != nullptr) weftMemFree(data_);
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  T* begin() noexcept { return data_; }
  T* end() noexcept { return data_ + size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }
  std::span<T> span() noexcept { return {data_, size_}; }
  std::span<const T> span() const noexcept { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// ---- Communicators --------------------------------------------------------------------------------------------------

class Communicator {
 public:
  // Holds nothing; only assignment and bool may be used.
  Communicator() = default;
  // Takes ownership of a C handle.
  explicit Communicator(weftComm_t comm) noexcept : comm_(comm) {}
  // Finalizes and releases. Destroy a communicator on all ranks at about the same time.
  ~Communicator() {
    if (comm_ != nullptr) weftCommDestroy(comm_);
  }
  Communicator(Communicator&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }

  // The job that a launcher started us in (weft-run, torchrun, mpirun, srun); one rank without a launcher.
  static Communicator from_env(const Config& config = {}) {
    weftConfig_t raw = config.raw();
    weftComm_t comm = nullptr;
    check(weftCommInitEnv(&comm, &raw), "weftCommInitEnv");
    return Communicator(comm);
  }
  // Rank `rank` of `ranks`, all of which were handed the same id.
  static Communicator join(const weftUniqueId& id, int ranks, int rank, const Config& config = {}) {
    weftConfig_t raw = config.raw();
    weftComm_t comm = nullptr;
    check(weftCommInitRankConfig(&comm, ranks, id, rank, &raw), "weftCommInitRankConfig");
    return Communicator(comm);
  }
  // `ranks` ranks in this process, each for a thread of its own.
  static std::vector<Communicator> all(int ranks) {
    std::vector<weftComm_t> raw(static_cast<std::size_t>(ranks > 0 ? ranks : 0), nullptr);
    check(weftCommInitAll(raw.data(), ranks, nullptr), "weftCommInitAll");
    std::vector<Communicator> comms;
    comms.reserve(raw.size());
    for (weftComm_t comm : raw) comms.emplace_back(comm);
    return comms;
  }

  weftComm_t raw() const noexcept { return comm_; }
  explicit operator bool() const noexcept { return comm_ != nullptr; }
  // Gives the handle away: the caller destroys it.
  weftComm_t release() noexcept { return std::exchange(comm_, nullptr); }

  int rank() const {
    int rank = 0;
    check(weftCommUserRank(comm_, &rank), "weftCommUserRank", comm_);
    return rank;
  }
  int size() const {
    int count = 0;
    check(weftCommCount(comm_, &count), "weftCommCount", comm_);
    return count;
  }

  // Ranks of one colour form a communicator, ordered by key, then by rank. Colour WEFT_SPLIT_NOCOLOR: an empty one.
  Communicator split(int color, int key) const { return split(color, key, nullptr); }
  Communicator split(int color, int key, const Config& config) const {
    weftConfig_t raw = config.raw();
    return split(color, key, &raw);
  }
  // All ranks but those listed, which may be dead; abort_first ends what is in flight here.
  Communicator shrink(std::span<const int> excluded, bool abort_first = false) const {
    std::vector<int> list(excluded.begin(), excluded.end());
    weftComm_t comm = nullptr;
    check(weftCommShrink(comm_, list.data(), static_cast<int>(list.size()), &comm, nullptr,
                         abort_first ? WEFT_SHRINK_ABORT : WEFT_SHRINK_DEFAULT),
          "weftCommShrink", comm_);
    return Communicator(comm);
  }

  // Waits until all operations are done, here and at the peers that need us.
  void finalize() { check(weftCommFinalize(comm_), "weftCommFinalize", comm_); }
  // Ends all operations within a second, from any thread.
  void abort() { check(weftCommAbort(comm_), "weftCommAbort", comm_); }
  // weftSuccess, weftInProgress, or the error that ended the communicator.
  weftResult_t async_error() const {
    weftResult_t state = weftSuccess;
    check(weftCommGetAsyncError(comm_, &state), "weftCommGetAsyncError", comm_);
    return state;
  }
  void set_timeout(std::chrono::milliseconds timeout) {
    check(weftCommSetTimeout(comm_, timeout.count()), "weftCommSetTimeout", comm_);
  }
  weftStats_t stats() const {
    weftStats_t stats{};
    stats.size = sizeof(stats);
    check(weftCommGetStats(comm_, &stats), "weftCommGetStats", comm_);
    return stats;
  }
  // Counters of every wire and the last operations, as JSON or Prometheus text.
  std::string dump(weftDumpFormat_t format = weftDumpJson) const {
    std::string text(std::size_t{1} << 16, '\0');
    for (;;) {
      std::size_t length = text.size();
      weftResult_t result = weftCommDump(comm_, format, text.data(), &length);
      if (result == weftInvalidArgument && length > text.size()) {
        text.resize(length * 2);  // it may have grown by the time we ask again
        continue;
      }
      check(result, "weftCommDump", comm_);
      text.resize(length > 0 ? length - 1 : 0);
      return text;
    }
  }

  // ---- Collectives. n is the number of ranks, r this one. ----

  // recv[i] = op over ranks of send[i]; both of one size, the same on all ranks.
  template <Source S, Target R>
  requires SameElement<S, R>
  void all_reduce(S&& send, R&& recv, weftRedOp_t op = weftSum, weftStream_t stream = nullptr) {
    require(size_of(recv) == size_of(send), "all_reduce", "recv", size_of(recv), size_of(send));
    check(weftAllReduce(data_of(send), data_of(recv), size_of(send), kind<S>(), op, comm_, stream), "weftAllReduce",
          comm_);
  }
  // In place.
  template <Target R>
  void all_reduce(R&& data, weftRedOp_t op = weftSum, weftStream_t stream = nullptr) {
    all_reduce(data, data, op, stream);
  }

  // As all_reduce, at root only; recv is not used elsewhere and may be empty there.
  template <Source S, Target R>
  requires SameElement<S, R>
  void reduce(S&& send, R&& recv, int root, weftRedOp_t op = weftSum, weftStream_t stream = nullptr) {
    if (rank() == root) require(size_of(recv) == size_of(send), "reduce", "recv", size_of(recv), size_of(send));
    check(weftReduce(data_of(send), data_of(recv), size_of(send), kind<S>(), op, root, comm_, stream), "weftReduce",
          comm_);
  }
  template <Target R>
  void reduce(R&& data, int root, weftRedOp_t op = weftSum, weftStream_t stream = nullptr) {
    reduce(data, data, root, op, stream);
  }

  // recv of every rank = root's send; send is not used elsewhere and may be empty there.
  template <Source S, Target R>
  requires SameElement<S, R>
  void broadcast(S&& send, R&& recv, int root, weftStream_t stream = nullptr) {
    if (rank() == root) require(size_of(send) == size_of(recv), "broadcast", "send", size_of(send), size_of(recv));
    check(weftBroadcast(data_of(send), data_of(recv), size_of(recv), kind<S>(), root, comm_, stream), "weftBroadcast",
          comm_);
  }
  template <Target R>
  void broadcast(R&& data, int root, weftStream_t stream = nullptr) {
    check(weftBroadcast(data_of(data), data_of(data), size_of(data), kind<R>(), root, comm_, stream), "weftBroadcast",
          comm_);
  }

  // recv[j * c + i] = rank j's send[i], where c is the size of send and n * c that of recv.
  template <Source S, Target R>
  requires SameElement<S, R>
  void all_gather(S&& send, R&& recv, weftStream_t stream = nullptr) {
    require(size_of(recv) == times_ranks(size_of(send)), "all_gather", "recv", size_of(recv),
            times_ranks(size_of(send)));
    check(weftAllGather(data_of(send), data_of(recv), size_of(send), kind<S>(), comm_, stream), "weftAllGather", comm_);
  }
  // In place: block r of data is what this rank gives.
  template <Target R>
  void all_gather(R&& data, weftStream_t stream = nullptr) {
    std::size_t count = block(data, "all_gather");
    check(weftAllGather(own_block(data, count), data_of(data), count, kind<R>(), comm_, stream), "weftAllGather",
          comm_);
  }

  // Block r of the reduction of all ranks' send, where c is the size of recv and n * c that of send.
  template <Source S, Target R>
  requires SameElement<S, R>
  void reduce_scatter(S&& send, R&& recv, weftRedOp_t op = weftSum, weftStream_t stream = nullptr) {
    require(size_of(send) == times_ranks(size_of(recv)), "reduce_scatter", "send", size_of(send),
            times_ranks(size_of(recv)));
    check(weftReduceScatter(data_of(send), data_of(recv), size_of(recv), kind<S>(), op, comm_, stream),
          "weftReduceScatter", comm_);
  }
  // In place: the result is block r of data, which is returned.
  template <Target R>
  std::span<std::ranges::range_value_t<R>> reduce_scatter(R&& data, weftRedOp_t op = weftSum,
                                                          weftStream_t stream = nullptr) {
    std::size_t count = block(data, "reduce_scatter");
    auto* own = own_block(data, count);
    check(weftReduceScatter(data_of(data), own, count, kind<R>(), op, comm_, stream), "weftReduceScatter", comm_);
    return {own, count};
  }

  // recv[j * c + i] = rank j's send[r * c + i], where n * c is the size of both.
  template <Source S, Target R>
  requires SameElement<S, R>
  void all_to_all(S&& send, R&& recv, weftStream_t stream = nullptr) {
    require(size_of(recv) == size_of(send), "all_to_all", "recv", size_of(recv), size_of(send));
    check(weftAlltoAll(data_of(send), data_of(recv), block(send, "all_to_all"), kind<S>(), comm_, stream),
          "weftAlltoAll", comm_);
  }
  template <Target R>
  void all_to_all(R&& data, weftStream_t stream = nullptr) {
    all_to_all(data, data, stream);
  }

  // At root recv[j * c + i] = rank j's send[i]; recv is not used elsewhere and may be empty there.
  template <Source S, Target R>
  requires SameElement<S, R>
  void gather(S&& send, R&& recv, int root, weftStream_t stream = nullptr) {
    if (rank() == root)
      require(size_of(recv) == times_ranks(size_of(send)), "gather", "recv", size_of(recv), times_ranks(size_of(send)));
    check(weftGather(data_of(send), data_of(recv), size_of(send), kind<S>(), root, comm_, stream), "weftGather", comm_);
  }

  // recv[i] = root's send[r * c + i]; send is not used elsewhere and may be empty there.
  template <Source S, Target R>
  requires SameElement<S, R>
  void scatter(S&& send, R&& recv, int root, weftStream_t stream = nullptr) {
    if (rank() == root)
      require(size_of(send) == times_ranks(size_of(recv)), "scatter", "send", size_of(send),
              times_ranks(size_of(recv)));
    check(weftScatter(data_of(send), data_of(recv), size_of(recv), kind<S>(), root, comm_, stream), "weftScatter",
          comm_);
  }

  // Returns when every rank has called it.
  void barrier(weftStream_t stream = nullptr) { check(weftBarrier(comm_, stream), "weftBarrier", comm_); }

  // ---- v-variants. Counts and displacements have one entry per rank, in elements; a displacement whose count is 0 is
  // ---- not read. Every block must lie inside its range.

  // Block j of recv, counts[j] elements from displs[j], = rank j's send.
  template <Source S, Target R>
  requires SameElement<S, R>
  void all_gather_v(S&& send, R&& recv, Counts counts, Counts displs, weftStream_t stream = nullptr) {
    require_blocks("all_gather_v", "recv", size_of(recv), counts, displs);
    check(weftAllGatherv(data_of(send), size_of(send), data_of(recv), counts.data(), displs.data(), kind<S>(), comm_,
                         stream),
          "weftAllGatherv", comm_);
  }
  // recv, counts[r] elements, = block r of the reduction of all ranks' send.
  template <Source S, Target R>
  requires SameElement<S, R>
  void reduce_scatter_v(S&& send, Counts counts, Counts displs, R&& recv, weftRedOp_t op = weftSum,
                        weftStream_t stream = nullptr) {
    require_blocks("reduce_scatter_v", "send", size_of(send), counts, displs);
    check(weftReduceScatterv(data_of(send), counts.data(), displs.data(), data_of(recv), size_of(recv), kind<S>(), op,
                             comm_, stream),
          "weftReduceScatterv", comm_);
  }
  // Block j of recv = block r of rank j's send.
  template <Source S, Target R>
  requires SameElement<S, R>
  void all_to_all_v(S&& send, Counts send_counts, Counts send_displs, R&& recv, Counts recv_counts, Counts recv_displs,
                    weftStream_t stream = nullptr) {
    require_blocks("all_to_all_v", "send", size_of(send), send_counts, send_displs);
    require_blocks("all_to_all_v", "recv", size_of(recv), recv_counts, recv_displs);
    check(weftAlltoAllv(data_of(send), send_counts.data(), send_displs.data(), data_of(recv), recv_counts.data(),
                        recv_displs.data(), kind<S>(), comm_, stream),
          "weftAlltoAllv", comm_);
  }
  // At root block j of recv = rank j's send; recv, counts and displs are read at root only.
  template <Source S, Target R>
  requires SameElement<S, R>
  void gather_v(S&& send, R&& recv, Counts counts, Counts displs, int root, weftStream_t stream = nullptr) {
    if (rank() == root) require_blocks("gather_v", "recv", size_of(recv), counts, displs);
    check(weftGatherv(data_of(send), size_of(send), data_of(recv), counts.data(), displs.data(), kind<S>(), root, comm_,
                      stream),
          "weftGatherv", comm_);
  }
  // recv = block r of root's send; send, counts and displs are read at root only.
  template <Source S, Target R>
  requires SameElement<S, R>
  void scatter_v(S&& send, Counts counts, Counts displs, R&& recv, int root, weftStream_t stream = nullptr) {
    if (rank() == root) require_blocks("scatter_v", "send", size_of(send), counts, displs);
    check(weftScatterv(data_of(send), counts.data(), displs.data(), data_of(recv), size_of(recv), kind<S>(), root,
                       comm_, stream),
          "weftScatterv", comm_);
  }

  // ---- Point to point ----

  // Matched by pair of ranks, in order; both sides of one size and type. To oneself only inside a Group.
  template <Source S>
  void send(S&& data, int peer, weftStream_t stream = nullptr) {
    check(weftSend(data_of(data), size_of(data), kind<S>(), peer, comm_, stream), "weftSend", comm_);
  }
  template <Target R>
  void recv(R&& data, int peer, weftStream_t stream = nullptr) {
    check(weftRecv(data_of(data), size_of(data), kind<R>(), peer, comm_, stream), "weftRecv", comm_);
  }

 private:
  template <typename R>
  static constexpr weftDataType_t kind() {
    return type_of<std::ranges::range_value_t<R>>;
  }
  template <typename R>
  static std::size_t size_of(R& range) {
    return static_cast<std::size_t>(std::ranges::size(range));
  }
  template <typename R>
  static auto* data_of(R& range) {
    return std::ranges::data(range);
  }
  std::size_t times_ranks(std::size_t count) const { return count * static_cast<std::size_t>(size()); }

  // The n-th part of a range whose size n must divide.
  template <typename R>
  std::size_t block(R& range, const char* call) const {
    auto n = static_cast<std::size_t>(size());
    if (size_of(range) % n != 0)
      throw Error(weftInvalidArgument, std::string(call) + ": " + std::to_string(size_of(range)) +
                                           " elements cannot be shared out to " + std::to_string(n) + " ranks");
    return size_of(range) / n;
  }
  template <typename R>
  auto* own_block(R& range, std::size_t count) const {
    return size_of(range) == 0 ? data_of(range) : data_of(range) + static_cast<std::size_t>(rank()) * count;
  }

  static void require(bool fits, const char* call, const char* what, std::size_t has, std::size_t needed) {
    if (!fits)
      throw Error(weftInvalidArgument, std::string(call) + ": " + what + " has " + std::to_string(has) +
                                           " elements and must have " + std::to_string(needed));
  }
  void require_blocks(const char* call, const char* what, std::size_t has, Counts counts, Counts displs) const {
    auto n = static_cast<std::size_t>(size());
    if (counts.size() != n || displs.size() != n)
      throw Error(weftInvalidArgument, std::string(call) + ": " + std::to_string(counts.size()) + " counts and " +
                                           std::to_string(displs.size()) + " displacements for " + std::to_string(n) +
                                           " ranks");
    for (std::size_t j = 0; j < n; ++j) {
      if (counts[j] == 0 || (displs[j] <= has && counts[j] <= has - displs[j])) continue;
      throw Error(weftInvalidArgument, std::string(call) + ": block " + std::to_string(j) + ", " +
                                           std::to_string(counts[j]) + " elements from " + std::to_string(displs[j]) +
                                           ", does not lie inside " + what + " of " + std::to_string(has));
    }
  }

  Communicator split(int color, int key, weftConfig_t* config) const {
    weftComm_t comm = nullptr;
    check(weftCommSplit(comm_, color, key, &comm, config), "weftCommSplit", comm_);
    return Communicator(comm);
  }

  weftComm_t comm_ = nullptr;
};

// ---- What belongs to a communicator; each must go before it does ----------------------------------------------------

// The reduction sum(scalar * x), where every rank gives its own scalar. Convertible to the op of a collective.
template <Element T>
class PreMulSum {
 public:
  PreMulSum(const Communicator& comm, T scalar) : comm_(comm.raw()) {
    check(weftRedOpCreatePreMulSum(&op_, &scalar, type_of<T>, weftScalarHostImmediate, comm_),
          "weftRedOpCreatePreMulSum", comm_);
  }
  ~PreMulSum() { weftRedOpDestroy(op_, comm_); }
  PreMulSum(const PreMulSum&) = delete;
  PreMulSum& operator=(const PreMulSum&) = delete;
  operator weftRedOp_t() const noexcept { return op_; }  // NOLINT: it is an op

 private:
  weftComm_t comm_;
  weftRedOp_t op_ = weftSum;
};

// Tells a communicator that it will see a range again. Local.
class Registration {
 public:
  template <Target R>
  Registration(const Communicator& comm, R&& range) : comm_(comm.raw()) {
    check(weftCommRegister(comm_, std::ranges::data(range),
                           std::ranges::size(range) * sizeof(std::ranges::range_value_t<R>), &handle_),
          "weftCommRegister", comm_);
  }
  ~Registration() { weftCommDeregister(comm_, handle_); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  weftComm_t comm_;
  void* handle_ = nullptr;
};

// A range whose mappings all ranks exchange once. Making it is collective, destroying it is local.
class Window {
 public:
  template <Target R>
  Window(const Communicator& comm, R&& range) : comm_(comm.raw()) {
    check(weftCommWindowRegister(comm_, std::ranges::data(range),
                                 std::ranges::size(range) * sizeof(std::ranges::range_value_t<R>), &window_,
                                 WEFT_WIN_DEFAULT),
          "weftCommWindowRegister", comm_);
  }
  ~Window() { weftCommWindowDeregister(comm_, window_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

 private:
  weftComm_t comm_;
  weftWindow_t window_ = nullptr;
};

// ---- Mixture of experts ---------------------------------------------------------------------------------------------

// Tokens to the ranks of their experts, and the weighted sum of what those make of them back. A token is `hidden`
// elements of T: float, or 16-bit numbers of the type that is given. The communicator outlives it.
template <typename T>
class Moe {
 public:
  Moe(const Communicator& comm, int experts, int topk, std::size_t hidden, weftDataType_t type, weftDataType_t wire)
      : comm_(comm.raw()),
        topk_(static_cast<std::size_t>(topk)),
        hidden_(hidden),
        local_(static_cast<std::size_t>(experts / comm.size())) {
    const weftMoeConfig_t config{sizeof(weftMoeConfig_t), experts, topk, hidden, type, wire};
    check(weftMoeCreate(&moe_, comm_, &config), "weftMoeCreate", comm_);
  }
  ~Moe() { weftMoeDestroy(moe_); }
  Moe(const Moe&) = delete;
  Moe& operator=(const Moe&) = delete;

  // tokens: [n][hidden]; experts and weights: [n][topk]. `rows` becomes the tokens of this rank's experts, [sum of
  // counts][hidden], `counts` how many each of them has.
  void dispatch(std::span<const T> tokens, std::span<const std::int32_t> experts, std::span<const float> weights,
                std::vector<T>& rows, std::vector<std::size_t>& counts) {
    const std::size_t n = tokens.size() / hidden_;
    if (tokens.size() != n * hidden_ || experts.size() != n * topk_ || weights.size() != n * topk_) {
      throw Error(weftInvalidArgument,
                  "Moe::dispatch: " + std::to_string(tokens.size()) + " elements, " + std::to_string(experts.size()) +
                      " experts and " + std::to_string(weights.size()) + " weights; legal: n*hidden, n*topk, n*topk");
    }
    counts.resize(local_);
    std::size_t total = 0;
    const weftResult_t result = weftMoeDispatch(moe_, tokens.data(), experts.data(), weights.data(), n, rows.data(),
                                                rows.size() / hidden_, counts.data(), &total);
    const bool too_small = result == weftInvalidUsage && total * hidden_ > rows.size();
    if (!too_small) check(result, "weftMoeDispatch", comm_);
    rows.resize(total * hidden_);
    if (too_small) check(weftMoeRows(moe_, rows.data(), total), "weftMoeRows", comm_);
  }
  // `rows` as dispatch gave them, with what the experts made of them; out: as many tokens as were dispatched.
  void combine(std::span<const T> rows, std::span<T> out) {
    check(weftMoeCombine(moe_, rows.data(), out.data()), "weftMoeCombine", comm_);
  }

 private:
  weftComm_t comm_;
  weftMoe_t moe_ = nullptr;
  std::size_t topk_, hidden_, local_;
};

}  // namespace cpp
}  // namespace weft
#endif  // WEFT_WEFT_HPP_
