// The wire of the ucx transport: messages as UCX's active messages, and beside them a connection of the wire's own for
// notes (see frame.hpp), by which either end knows who the other one is, that it lives, and what it refuses.
//
// Small messages go eagerly. UCX takes in all that comes to the worker, for whichever wire, so that nothing but this
// wire's own account (kWindow) bounds what is kept for receives that are not posted yet: beyond it a message goes by
// rendezvous, and waits at its sender. That cannot deadlock, because a rendezvous of any length begins as soon as its
// receive is posted, whatever else stands before it. The descriptors that wait are bounded as the messages of a tcp
// wire are: such a send is not done, and the peer starts only some number of operations after the oldest that it has
// not finished.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transports/note_stream.hpp"
#include "transports/tables.hpp"
#include "transports/transport.hpp"
#include "transports/ucx/early.hpp"
#include "transports/ucx/worker.hpp"

namespace weft::ucx {

class UcxWire : public Wire {
 public:
  UcxWire(int peer, std::shared_ptr<Worker> worker, size_t eager_bytes);
  ~UcxWire() override;

  // The peer's worker: messages can go there once the peer has said hello.
  void reach(const std::string& worker_address);
  // Takes over an authenticated connection. A second one is dropped.
  void adopt(Fd fd);
  // The connection cannot be made.
  void connection_failed(const std::string& why);

  void send(SendRequest& request) override;
  void recv(RecvRequest& request) override;
  bool progress() override;
  bool arm() override;
  void disarm() override { worker_->disarm(); }
  void tick() override;
  bool has_early() const override { return !early_.empty(); }
  void early(std::vector<MessageId>* ids) const override;
  void cancel() override;
  void close() override;
  std::string_view transport() const override { return "ucx"; }
  size_t eager_bytes() const override { return eager_bytes_; }
  bool connected() const override { return welcome_ && endpoint_ != nullptr; }

  // Reads the notes that have come.
  bool look();

  // Called by the worker.
  bool trusts(const Header& header) const { return control_.is_open() && header.token == own_token_; }
  ucs_status_t incoming(const Header& header, void* data, size_t length, bool rendezvous);
  void endpoint_failed(ucs_status_t status);

 private:
  static void on_sent(void* request, ucs_status_t status, void* operation);
  static void on_fetched(void* request, ucs_status_t status, size_t length, void* operation);

  bool usable();
  void start(SendRequest& request);
  void sent(Operation& operation, ucs_status_t status);
  void fetch(RecvRequest& request, void* descriptor);
  void fetched(Operation& operation, ucs_status_t status);
  bool accept_landed();
  void take(RecvRequest& request, const void* data, size_t length);
  void arrived(RecvRequest& request);
  void start_waiting();
  void on_note(const Note& note);
  void on_refuse(const Note& note);
  void check_peer();
  void check_left();
  void check_gone();

  // Whether a peer's message belongs to the request; if not, the wire has failed and the peer is told.
  bool matches(const MessageId& ours, size_t bytes, const Header& theirs, size_t length);
  void lost(ucs_status_t status);
  void fail(WireError why);
  void fail(WireError::Kind kind, std::string text) { fail({kind, {}, {}, std::move(text)}); }

  std::shared_ptr<Worker> worker_;
  size_t eager_bytes_;
  Endpoint* endpoint_ = nullptr;
  NoteStream control_;
  uint64_t own_token_ = 0, peer_token_ = 0;
  bool welcome_ = false;  // the peer has said hello

  size_t requests_ = 0;    // that the wire holds
  size_t operations_ = 0;  // that UCX works at
  Queue<SendRequest*> unconnected_;
  Table<RecvRequest> posted_;
  EarlyStore early_;
  std::vector<Operation*> landed_;  // rendezvous that are here, but not looked at the peer since

  uint64_t eager_sent_ = 0, eager_confirmed_ = 0;                    // towards the peer's window
  uint64_t eager_taken_ = 0, eager_told_ = 0;                        // of ours
  uint64_t messages_out_ = 0, messages_in_ = 0, messages_left_ = 0;  // the last: how many the peer sent in all

  uint32_t calls_ = 0, ticks_alone_ = 0;
  bool moved_ = false;     // since progress() was last asked
  bool left_ = false;      // the peer said goodbye
  bool seen_off_ = false;  // and was told that all of it has come
  bool dead_ = false;
  bool cancelled_ = false;
};

}  // namespace weft::ucx
