// The wire of the verbs transport: frames and writes over all pairs of rails to one peer, and a control connection
// beside them. Everything that is posted can be posted again over another pair.
//
// Flow control is tcp's, with credits for its full sockets: frames that come before their receive are kept, and credits
// for them go back only while the wire holds requests. See tcp/wire.hpp why that cannot deadlock.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transports/verbs/pair.hpp"

namespace weft::verbs {

class VerbsWire : public Wire {
 public:
  // on_gone runs once, when the wire is closed, cancelled or destroyed.
  VerbsWire(int peer, std::shared_ptr<Fabric> fabric, Deadline deadline, std::function<void()> on_gone);
  ~VerbsWire() override;

  // Takes over the control connection.
  void adopt(uint32_t channel, Fd fd);
  void connection_failed(const std::string& why);

  void send(SendRequest& request) override;
  void recv(RecvRequest& request) override;
  bool progress() override;
  bool arm() override;
  void disarm() override { fabric_->disarm(); }
  void tick() override;
  bool has_early() const override { return early_.count() > 0; }
  void early(std::vector<MessageId>* ids) const override;
  void cancel() override;
  void close() override;
  std::string_view transport() const override { return "verbs"; }
  size_t eager_bytes() const override { return kEagerBytes; }
  bool connected() const override;

  // Called by the fabric. None of them posts anything.
  void completed(Lane& lane, uint64_t serial);
  void flushed(Lane& lane, uint64_t serial);
  void lane_failed(Lane& lane, const std::string& why);
  void frame_came(const std::byte* data, size_t bytes);
  void fragment_came(Lane& lane, uint32_t immediate, size_t bytes);
  void rail_down(int rail, bool gone);
  // And by the connection manager.
  Pair* expecting(uint32_t pair, uint32_t epoch, uint64_t token);
  void pair_connected(Pair& pair);

  const std::vector<std::unique_ptr<Pair>>& pairs() const { return pairs_; }

 private:
  // What waits to be posted as a frame: a small message, or a clear for a slot, or a frame that is only a header.
  struct Out {
    Frame frame;
    SendRequest* request = nullptr;
    uint32_t slot = kSlots;
  };
  // A frame that the peer has not taken, as far as we know.
  struct Sent {
    FrameBuffer buffer;
    uint32_t bytes = 0;
    int pair = -1;
    uint32_t epoch = 0;
  };
  // Messages of one operation of which something is to be posted, in order.
  struct Flow {
    uint32_t sequence = 0;
    std::vector<Outgoing*> messages;
  };

  // pairs.cpp
  void take_notes();
  void on_hello(const HelloNote& hello);
  void on_up(const UpNote& up);
  void on_ready(const ReadyNote& ready);
  void on_down(const DownNote& down);
  void on_refuse(const RefuseNote& refuse);
  void on_bye(const ByeNote& bye);
  HelloNote hello() const;
  Status start(Pair& pair);
  void connect(Pair& pair);
  void check_up(Pair& pair);
  void take_down(Pair& pair);
  void end(Pair& pair, const std::string& why);
  void settle(Pair& pair);
  void mend();
  void look_at_pairs();
  void release_rail(int rail);

  // wire.cpp: what goes out
  bool post_frames();
  bool post(Out& out);
  bool repost();
  bool post_fragments();
  bool post_fragment(Flow& flow);
  bool post_fragment(Outgoing& message, uint32_t fragment, Lane& lane);
  bool post_credit(Lane* lane, bool signaled);
  Lane* lane_for_frame();
  bool post_to(Lane& lane, const std::byte* data, uint32_t bytes, const ibv_mr* region, bool signaled);
  uint32_t gather(Outgoing& message, uint32_t fragment, int rail, ibv_sge* pieces, Block** bounce);
  bool usable(const Outgoing& message, const Lane& lane) const;
  void begin(SendRequest& request, const Clear& clear);
  void list(Outgoing& message);
  void fragment_done(Outgoing& message);
  void finish(Outgoing& message);
  void release(Outgoing& message);
  void release_pieces(Outgoing& message, size_t rail);
  void acknowledge(uint32_t upto);
  void push(const Out& out) { out_.push(out); }
  void push_clear(uint32_t slot);

  // wire_in.cpp: what comes in
  Status open_slot(RecvRequest& request);
  Clear clear_of(uint32_t slot);
  void close_slot(uint32_t slot);
  void release_entry(Incoming& incoming, size_t rail);
  void on_eager(const Frame& frame, const std::byte* data);
  void on_clear(const Frame& frame, const Clear& clear);
  void on_announce(const Frame& frame);
  void deliver(Early& early, RecvRequest& request);
  void arrived(RecvRequest& request);
  bool matches(const MessageId& ours, size_t bytes, const Frame& theirs);
  void check_left();
  void fail(WireError why);
  void fail(WireError::Kind kind, std::string text) { fail({kind, {}, {}, std::move(text)}); }
  void forget();
  void gone();
  void tell_of_stall();

  // For the log: what stood the same for long, and since when.
  uint64_t stall_mark_ = 0;
  Clock::time_point stall_since_{};

  std::shared_ptr<Fabric> fabric_;
  NoteStream control_;
  Deadline deadline_;
  std::function<void()> on_gone_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  bool greeted_ = false;  // the peer's hello is here
  bool was_up_ = false;
  bool trouble_ = false;  // a lane has failed, and its pair is still to be ended
  bool dead_ = false;     // nothing is done for requests any more
  bool left_ = false;     // the peer has said goodbye
  uint32_t their_frames_ = 0;
  uint32_t calls_ = 0;
  Clock::time_point moved_at_{};        // something came, since the goodbye
  Clock::time_point stranded_since_{};  // no pair is up

  size_t requests_ = 0;
  Table<RecvRequest> posted_;   // waiting for their message
  Table<SendRequest> waiting_;  // large ones without a clear
  EarlyStore early_;            // eager and announce frames
  EarlyStore early_clears_;
  Queue<Out> out_;
  std::vector<uint32_t> resend_;  // numbers of frames
  std::array<Sent, 2 * kCredits> sent_;
  uint32_t sent_last_ = 0, acked_ = 0;  // numbers
  Taken taken_;
  uint32_t told_ = 0;  // what the peer knows of taken_.upto
  FrameBuffer credit_buffer_;

  std::vector<Flow> flows_;
  size_t next_flow_ = 0;
  size_t next_lane_ = 0;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;  // those in use, and free ones behind them
  std::vector<Outgoing*> free_outgoing_;
  std::vector<uint32_t> finished_;  // by the peer's slot: generation + 1 of the last message that is done
  std::vector<Incoming> slots_;
  std::vector<uint32_t> free_slots_;
};

}  // namespace weft::verbs
