// Mixture of experts: the handle.
#include "moe/moe.hpp"

#include "api/handles.hpp"

struct weftMoe {
  static constexpr uint32_t kMagic = 0x574d4f45;
  uint32_t magic = kMagic;
  weftComm* comm = nullptr;
  weft::Moe moe;

  weftMoe(weftComm* c, const weftMoeConfig_t& config)
      : comm(c), moe(c, c->comm->topology().hierarchy, c->rank, c->size, config) {}
  ~weftMoe() { magic = 0; }
};

namespace weft {
namespace {

Status check(const weftMoe* moe) {
  if (moe == nullptr) return error(weftInvalidArgument, "moe is NULL");
  if (moe->magic != weftMoe::kMagic) return error(weftInvalidArgument, "moe is no handle, or not any more");
  return check_ready(moe->comm);
}

Status check(const weftMoeConfig_t& config, int ranks) {
  const auto wrong = [](const char* name, auto value, const std::string& legal) {
    return error(weftInvalidArgument, "config->{} is {}; legal: {}", name, value, legal);
  };
  if (config.experts < ranks || config.experts % ranks != 0 || config.experts / ranks > INT16_MAX) {
    return wrong("experts", config.experts,
                 fmt::format("multiples of {}, the number of ranks, to {} of a rank", ranks, INT16_MAX));
  }
  if (config.topk < 1 || config.topk > 64) return wrong("topk", config.topk, "1 to 64");
  if (config.hidden < 1 || config.hidden > size_t{1} << 24) return wrong("hidden", config.hidden, "1 to 16777216");
  if (config.datatype != weftFloat32 && config.datatype != weftFloat16 && config.datatype != weftBfloat16) {
    return wrong("datatype", static_cast<int>(config.datatype), "weftFloat32, weftFloat16, weftBfloat16");
  }
  if (config.wire != config.datatype && config.wire != weftFloat8e4m3) {
    return wrong("wire", static_cast<int>(config.wire), "datatype, or weftFloat8e4m3");
  }
  return {};
}

}  // namespace
}  // namespace weft

using weft::error;
using weft::guarded;
using weft::Status;

extern "C" {

weftResult_t weftMoeCreate(weftMoe_t* moe, weftComm_t comm, const weftMoeConfig_t* config) {
  return guarded(comm, [&]() -> Status {
    if (moe == nullptr) return error(weftInvalidArgument, "moe is NULL");
    *moe = nullptr;
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (config == nullptr || config->size != sizeof(weftMoeConfig_t)) {
      return error(weftInvalidArgument, "config is NULL, or its size is not set to sizeof(weftMoeConfig_t)");
    }
    if (!comm->blocking) return error(weftInvalidUsage, "weftMoe needs a communicator whose calls block");
    WEFT_RETURN_IF_ERROR(weft::check(*config, comm->size));
    *moe = new weftMoe(comm, *config);
    return {};
  });
}

weftResult_t weftMoeDestroy(weftMoe_t moe) {
  return guarded(nullptr, [&]() -> Status {
    if (moe == nullptr) return {};
    if (moe->magic != weftMoe::kMagic) return error(weftInvalidArgument, "moe is no handle, or not any more");
    delete moe;
    return {};
  });
}

weftResult_t weftMoeDispatch(weftMoe_t moe, const void* tokens, const int32_t* experts, const float* weights,
                             size_t ntokens, void* rows, size_t capacity, size_t* counts, size_t* total) {
  return guarded(moe != nullptr && moe->magic == weftMoe::kMagic ? moe->comm : nullptr, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check(moe));
    for (const auto& [name, pointer] : {std::pair("tokens", tokens),
                                        {"experts", static_cast<const void*>(experts)},
                                        {"weights", static_cast<const void*>(weights)}}) {
      if (pointer == nullptr && ntokens > 0) return error(weftInvalidArgument, "{} is NULL", name);
    }
    if (rows == nullptr && capacity > 0) return error(weftInvalidArgument, "rows is NULL");
    if (counts == nullptr || total == nullptr) return error(weftInvalidArgument, "counts or total is NULL");
    if (ntokens > UINT32_MAX) return error(weftInvalidArgument, "ntokens is {}; legal: up to {}", ntokens, UINT32_MAX);
    if (weft::in_group()) return error(weftInvalidUsage, "weftMoeDispatch blocks, and cannot be in a group");
    return moe->moe.dispatch(tokens, experts, weights, ntokens, rows, capacity, counts, total);
  });
}

weftResult_t weftMoeRows(weftMoe_t moe, void* rows, size_t capacity) {
  return guarded(moe != nullptr && moe->magic == weftMoe::kMagic ? moe->comm : nullptr, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check(moe));
    if (rows == nullptr && capacity > 0) return error(weftInvalidArgument, "rows is NULL");
    return moe->moe.rows(rows, capacity);
  });
}

weftResult_t weftMoeCombine(weftMoe_t moe, const void* rows, void* out) {
  return guarded(moe != nullptr && moe->magic == weftMoe::kMagic ? moe->comm : nullptr, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check(moe));
    if (weft::in_group()) return error(weftInvalidUsage, "weftMoeCombine blocks, and cannot be in a group");
    return moe->moe.combine(rows, out);
  });
}

}  // extern "C"
