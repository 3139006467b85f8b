#include <mpi.h>

#include "cells.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const size_t bytes = compare::largest(argc, argv);
  float* in = compare::written(std::malloc(bytes), bytes);
  float* out = compare::written(std::malloc(bytes), bytes);
  compare::run_cells(
      argc, argv, rank, {in, out},
      [&](compare::Collective which, size_t floats, compare::Buffers buffers) {
        const int count = static_cast<int>(floats), part = count / ranks;
        switch (which) {
          case compare::allreduce:
            MPI_Allreduce(buffers.in, buffers.out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            break;
          case compare::reduce_scatter:
            MPI_Reduce_scatter_block(buffers.in, buffers.out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            break;
          case compare::allgather:
            MPI_Allgather(buffers.in, part, MPI_FLOAT, buffers.out, part, MPI_FLOAT, MPI_COMM_WORLD);
            break;
          case compare::broadcast:
            MPI_Bcast(buffers.out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
            break;
          default:
            MPI_Alltoall(buffers.in, part, MPI_FLOAT, buffers.out, part, MPI_FLOAT, MPI_COMM_WORLD);
        }
      },
      [&] { MPI_Barrier(MPI_COMM_WORLD); });
  MPI_Finalize();
}
