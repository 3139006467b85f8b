// UCC, from the prefix that compare.py is told.
#include <ucc/api/ucc.h>

#include "cells.hpp"
#include "oob.hpp"

namespace {

void check(ucc_status_t status, const char* what) {
  if (status == UCC_OK) return;
  std::fprintf(stderr, "%s: %s\n", what, ucc_status_string(status));
  std::exit(1);
}

struct Round {
  compare::Introduction* ranks;
  int number;
  void* all;
  size_t bytes;
};
ucc_status_t begin(void* mine, void* all, size_t bytes, void* ranks, void** request) {
  auto* introduction = static_cast<compare::Introduction*>(ranks);
  *request = new Round{introduction, introduction->begin(mine, bytes), all, bytes};
  return UCC_OK;
}
ucc_status_t test(void* request) {
  const auto* round = static_cast<Round*>(request);
  return round->ranks->done(round->number, round->all, round->bytes) ? UCC_OK : UCC_INPROGRESS;
}
ucc_status_t end(void* request) {
  delete static_cast<Round*>(request);
  return UCC_OK;
}

}  // namespace

int main(int argc, char** argv) {
  compare::Introduction ranks;
  ucc_lib_config_h lib_config;
  check(ucc_lib_config_read(nullptr, nullptr, &lib_config), "ucc_lib_config_read");
  ucc_lib_params_t lib_params{};
  lib_params.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE;
  lib_params.thread_mode = UCC_THREAD_SINGLE;
  ucc_lib_h lib;
  check(ucc_init(&lib_params, lib_config, &lib), "ucc_init");
  ucc_oob_coll_t oob{};
  oob.allgather = begin;
  oob.req_test = test;
  oob.req_free = end;
  oob.coll_info = &ranks;
  oob.n_oob_eps = static_cast<uint32_t>(ranks.ranks());
  oob.oob_ep = static_cast<uint32_t>(ranks.rank());
  ucc_context_config_h context_config;
  check(ucc_context_config_read(lib, nullptr, &context_config), "ucc_context_config_read");
  ucc_context_params_t context_params{};
  context_params.mask = UCC_CONTEXT_PARAM_FIELD_OOB;
  context_params.oob = oob;
  ucc_context_h context;
  check(ucc_context_create(lib, &context_params, context_config, &context), "ucc_context_create");
  ucc_team_params_t team_params{};
  team_params.mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE;
  team_params.oob = oob;
  team_params.ep = static_cast<uint64_t>(ranks.rank());
  team_params.ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG;
  ucc_team_h team;
  check(ucc_team_create_post(&context, 1, &team_params, &team), "ucc_team_create_post");
  for (ucc_status_t status = UCC_INPROGRESS; status == UCC_INPROGRESS; status = ucc_team_create_test(team)) {
    ucc_context_progress(context);
  }

  const size_t bytes = compare::largest(argc, argv);
  float* in = compare::written(std::malloc(bytes), bytes);
  float* out = compare::written(std::malloc(bytes), bytes);
  const auto run = [&](ucc_coll_type_t type, const void* from, size_t sent, void* to, size_t received) {
    ucc_coll_args_t args{};
    args.coll_type = type;
    args.src.info = {const_cast<void*>(from), sent, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST};
    args.dst.info = {to, received, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST};
    args.op = UCC_OP_SUM;
    ucc_coll_req_h request;
    check(ucc_collective_init(&args, &request, team), "ucc_collective_init");
    check(ucc_collective_post(request), "ucc_collective_post");
    while (ucc_collective_test(request) == UCC_INPROGRESS) ucc_context_progress(context);
    check(ucc_collective_finalize(request), "ucc_collective_finalize");
  };
  compare::run_cells(
      argc, argv, ranks.rank(), {in, out},
      [&](compare::Collective which, size_t floats, compare::Buffers buffers) {
        const size_t part = floats / static_cast<size_t>(ranks.ranks()),
                     whole = part * static_cast<size_t>(ranks.ranks());
        switch (which) {
          case compare::allreduce:
            return run(UCC_COLL_TYPE_ALLREDUCE, buffers.in, floats, buffers.out, floats);
          case compare::reduce_scatter:
            return run(UCC_COLL_TYPE_REDUCE_SCATTER, buffers.in, whole, buffers.out, part);
          case compare::allgather:
            return run(UCC_COLL_TYPE_ALLGATHER, buffers.in, part, buffers.out, whole);
          case compare::broadcast:
            return run(UCC_COLL_TYPE_BCAST, buffers.out, floats, nullptr, 0);
          default:
            return run(UCC_COLL_TYPE_ALLTOALL, buffers.in, whole, buffers.out, whole);
        }
      },
      [&] { run(UCC_COLL_TYPE_BARRIER, nullptr, 0, nullptr, 0); });
  std::_Exit(0);
}
