/* Every rank gives its number; every rank gets the sum. One process is a job of one rank:
 *   ./hello_allreduce
 *   weft-run -n 4 ./hello_allreduce
 *   mpirun -n 4 ./hello_allreduce */
#include <stdio.h>
#include <weft/weft.h>

static int failed(weftResult_t result, const char* what, weftComm_t comm) {
  if (result == weftSuccess) return 0;
  fprintf(stderr, "%s: %s: %s\n", what, weftGetErrorString(result), weftGetLastError(comm));
  return 1;
}

int main(void) {
  weftComm_t comm = NULL;
  if (failed(weftCommInitEnv(&comm, NULL), "weftCommInitEnv", NULL)) return 1;

  int rank = 0, size = 0;
  weftCommUserRank(comm, &rank);
  weftCommCount(comm, &size);

  float mine = (float)rank, sum = 0;
  if (failed(weftAllReduce(&mine, &sum, 1, weftFloat32, weftSum, comm, NULL), "weftAllReduce", comm)) return 1;
  printf("rank %d of %d: the sum is %g\n", rank, size, sum);

  if (failed(weftCommDestroy(comm), "weftCommDestroy", NULL)) return 1;
  return sum == (float)(size * (size - 1) / 2) ? 0 : 1;
}
