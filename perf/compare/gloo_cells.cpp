// Gloo over TCP, its only transport without special hardware. It has no reduce-scatter of this form.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "cells.hpp"
#include "oob.hpp"

int main(int argc, char** argv) {
  compare::Introduction ranks;
  gloo::rendezvous::FileStore store(ranks.folder());
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  auto context = std::make_shared<gloo::rendezvous::Context>(ranks.rank(), ranks.ranks());
  context->connectFullMesh(store, device);
  const size_t floats = compare::largest(argc, argv) / sizeof(float);
  std::vector<float> in(floats, 1), out(floats, 1);
  compare::run_cells(
      argc, argv, ranks.rank(), {in.data(), out.data()},
      [&](compare::Collective which, size_t count, compare::Buffers buffers) {
        const size_t part = count / static_cast<size_t>(ranks.ranks());
        if (which == compare::allreduce) {
          gloo::AllreduceOptions options(context);
          options.setInput(buffers.in, count);
          options.setOutput(buffers.out, count);
          options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
          gloo::allreduce(options);
        } else if (which == compare::allgather) {
          gloo::AllgatherOptions options(context);
          options.setInput(buffers.in, part);
          options.setOutput(buffers.out, part * static_cast<size_t>(ranks.ranks()));
          gloo::allgather(options);
        } else if (which == compare::broadcast) {
          gloo::BroadcastOptions options(context);
          options.setOutput(buffers.out, count);
          options.setRoot(0);
          gloo::broadcast(options);
        } else if (which == compare::alltoall) {
          gloo::AlltoallOptions options(context);
          options.setInput(buffers.in, part * static_cast<size_t>(ranks.ranks()));
          options.setOutput(buffers.out, part * static_cast<size_t>(ranks.ranks()));
          gloo::alltoall(options);
        } else {
          std::exit(0);  // not there
        }
      },
      [&] {
        gloo::BarrierOptions options(context);
        gloo::barrier(options);
      });
}
