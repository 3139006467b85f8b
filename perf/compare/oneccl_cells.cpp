// oneCCL, from the prefix that compare.py is told.
#include <oneapi/ccl.hpp>

#include "cells.hpp"
#include "oob.hpp"

int main(int argc, char** argv) {
  compare::Introduction ranks;
  ccl::init();
  ccl::shared_ptr_class<ccl::kvs> kvs;
  ccl::kvs::address_type address{};
  if (ranks.rank() == 0) {
    kvs = ccl::create_main_kvs();
    address = kvs->get_address();
  }
  std::vector<ccl::kvs::address_type> all(static_cast<size_t>(ranks.ranks()));
  ranks.all_gather(address.data(), all.data(), sizeof address);
  if (ranks.rank() != 0) kvs = ccl::create_kvs(all[0]);
  auto comm = ccl::create_communicator(ranks.ranks(), ranks.rank(), kvs);

  const size_t most = compare::largest(argc, argv) / sizeof(float);
  std::vector<float> in(most, 1), out(most, 1);
  compare::run_cells(
      argc, argv, ranks.rank(), {in.data(), out.data()},
      [&](compare::Collective which, size_t floats, compare::Buffers buffers) {
        const size_t part = floats / static_cast<size_t>(ranks.ranks());
        constexpr auto type = ccl::datatype::float32;
        switch (which) {
          case compare::allreduce:
            return ccl::allreduce(buffers.in, buffers.out, floats, type, ccl::reduction::sum, comm).wait();
          case compare::reduce_scatter:
            return ccl::reduce_scatter(buffers.in, buffers.out, part, type, ccl::reduction::sum, comm).wait();
          case compare::allgather:
            return ccl::allgatherv(buffers.in, part, buffers.out,
                                   std::vector<size_t>(static_cast<size_t>(ranks.ranks()), part), type, comm)
                .wait();
          case compare::broadcast:
            return ccl::broadcast(buffers.out, floats, type, 0, comm).wait();
          default:
            return ccl::alltoall(buffers.in, buffers.out, part, type, comm).wait();
        }
      },
      [&] { ccl::barrier(comm).wait(); });
  std::_Exit(0);
}
