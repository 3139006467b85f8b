// The wire of the tcp transport: all streams to one peer.
//
// Stream 0 carries what is small (whole small messages, clears, goodbyes). Fragments of large messages are pulled by
// whichever other stream is idle, or by stream 0 where it is the only one, one fragment at a time; so nothing small
// waits for more than one fragment, and a slow stream holds up no more than the fragment it has.
//
// The wire reads only while it holds requests (but for a little at each tick, to see who is there). That is all the
// flow control there is: a peer that runs ahead fills the sockets and then waits, and what is read into memory before
// its receive is posted is what had to be read to reach something that a request waits for. It cannot deadlock, because
// a wire with a request of any kind reads on: a message is never kept back by another operation's in front of it. It is
// bounded, because the peer starts an operation only some number of operations (the engine's concurrency, 16) after the
// oldest it has not finished: at most the small messages of two times that many operations can stand before the one
// that is waited for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transports/tcp/frame.hpp"
#include "transports/tcp/stream.hpp"
#include "transports/transport.hpp"

namespace weft::tcp {

class TcpWire : public Wire {
 public:
  // on_gone runs once, when the wire is closed, cancelled or destroyed.
  TcpWire(int peer, Poller* poller, std::function<void()> on_gone);
  ~TcpWire() override;

  // Takes over a connected stream. A second one for the same channel is dropped.
  void adopt(uint32_t channel, Fd fd);
  // The connection cannot be made.
  void connection_failed(const std::string& why);

  void send(SendRequest& request) override;
  void recv(RecvRequest& request) override;
  bool progress() override;
  bool arm() override;
  void tick() override;
  bool has_early() const override { return early_.count() > 0; }
  void early(std::vector<MessageId>* ids) const override;
  void cancel() override;
  void close() override;
  std::string_view transport() const override { return "tcp"; }
  size_t eager_bytes() const override { return kEagerBytes; }
  bool connected() const override { return !streams_.empty() && streams_[0]; }

  // Streams that are up; of interest to tests.
  size_t streams() const;
  // Bytes kept for messages that came before their receive.
  size_t early_bytes() const { return early_.bytes(); }

 private:
  // Cleared messages of one operation, in order.
  struct Flow {
    uint32_t sequence = 0;
    SendRequest* head = nullptr;
    SendRequest* tail = nullptr;
  };

  Stream* small() { return streams_.empty() ? nullptr : streams_[0].get(); }
  void push(const OutFrame& frame);
  bool write(Stream& stream);
  bool write_all();
  bool next_fragment(Stream& stream);
  void cleared(SendRequest& request, size_t unit);
  void written(const OutFrame& frame);

  bool read(Stream& stream, bool once = false);
  void look(Stream& stream);
  void parse(Stream& stream);
  void begin(Stream& stream, const Frame& frame);
  void begin_eager(Stream& stream, const Frame& frame);
  void begin_data(Stream& stream, const Frame& frame);
  void finish(Stream& stream);
  void deliver(Early& early);
  void arrived(RecvRequest& request);
  void on_clear(const Frame& frame);
  void on_announce(const Frame& frame);
  void on_refuse(const Frame& frame);

  // Whether a peer's frame belongs to the request; if not, the wire has failed and the peer is told.
  bool matches(const MessageId& ours, size_t bytes, const Frame& theirs);
  void lost(const Stream& stream, int number);
  void check_left();
  void fail(WireError why);
  void fail(WireError::Kind kind, std::string text) { fail({kind, {}, {}, std::move(text)}); }
  void drop_streams();
  void flush(Deadline deadline);
  void gone();

  Poller* poller_;
  std::function<void()> on_gone_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by channel; nullptr where none is up yet
  Queue<OutFrame> unconnected_;                   // frames that wait for stream 0

  size_t requests_ = 0;  // that the wire holds
  size_t large_ = 0;     // receives of large messages among them
  Table<RecvRequest> posted_;
  Table<SendRequest> waiting_;  // large sends that wait for their clear
  EarlyStore early_;            // messages before their receive
  EarlyStore early_clears_;     // clears before their send
  std::vector<Flow> flows_;
  size_t next_flow_ = 0;
  bool left_ = false;  // the peer said goodbye
  bool dead_ = false;
  bool losing_ = false;
};

}  // namespace weft::tcp
