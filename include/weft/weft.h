/* Weft: collective communication for training across GPUs, racks and sites.
 *
 * The C interface. Names, argument order and meanings follow nccl.h wherever NCCL has the call, so that porting is a
 * rename. What is said here once holds for every call:
 *
 * - Every call returns a weftResult_t. After a failure weftGetLastError(comm) says in one sentence what happened, at
 *   which rank, and what to do; weftGetLastError(NULL) does where the call has no communicator, or made none. The
 *   library never exits, never aborts, installs no signal handler and prints nothing unless WEFT_DEBUG asks for it.
 * - Counts are 64-bit numbers of elements, not bytes. Buffers of a count of 0 may be NULL.
 * - The last argument of a data call is a stream. NULL blocks until the call's result is in place (or it failed); a
 *   stream from weftStreamCreate makes the call asynchronous: it runs after all earlier calls on that stream, and
 *   weftStreamSynchronize waits for it. Count and displacement arrays are copied before an asynchronous call returns.
 * - All ranks of a communicator issue its collectives in the same order with the same count, type, op and root. A
 *   mismatch is an error on both sides that shows both calls, never a hang, and later calls are then refused.
 * - A collective may be in place (documented at each call). Any other overlap of the two buffers is
 *   weftInvalidArgument.
 * - Different communicators may be used from different threads at once. Calls on one communicator from several threads
 *   are serialised.
 * - After fork() a child must not use its parent's communicators (weftInvalidUsage); fork and exec is safe.
 *
 * Numbers. fp16, bf16 and fp8 are combined in fp32 and rounded once per hop (accumulate = weftAccumulateWide, or
 * WEFT_ACCUM=wide, carries fp32 partial results and rounds once at the end). NaN propagates through sum, prod, min and
 * max, from any rank, as the canonical NaN of the type; min and max order -0 below +0. avg is the sum divided by the
 * number of ranks: rounded once for floating types, truncated toward zero for integers. Integer overflow wraps. There
 * is no FMA contraction. For one call all ranks receive the same bits, whatever their CPUs, and the same call on the
 * same communicator with the same configuration gives the same bits in every run.
 */
#ifndef WEFT_WEFT_H_
#define WEFT_WEFT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_MAJOR 0
#define WEFT_MINOR 1
#define WEFT_PATCH 0
#define WEFT_VERSION_CODE (WEFT_MAJOR * 10000 + WEFT_MINOR * 100 + WEFT_PATCH)

#define WEFT_API __attribute__((visibility("default")))

typedef enum {
  weftSuccess = 0,
  weftUnhandledCudaError = 1,
  weftSystemError = 2,     /* a system call failed, or a resource ran out */
  weftInternalError = 3,   /* a defect of Weft */
  weftInvalidArgument = 4, /* this call's arguments are wrong */
  weftInvalidUsage = 5,    /* the call is not legal now, or the ranks' calls do not match */
  weftRemoteError = 6,     /* another rank failed, died or left */
  weftInProgress = 7,      /* a non-blocking communicator is still at work; not an error */
  weftTimeout = 8,         /* a rank did not take part within the timeout */
  weftAborted = 9          /* weftCommAbort was called */
} weftResult_t;

typedef enum {
  weftInt8 = 0,
  weftChar = 0,
  weftUint8 = 1,
  weftInt32 = 2,
  weftInt = 2,
  weftUint32 = 3,
  weftInt64 = 4,
  weftUint64 = 5,
  weftFloat16 = 6,
  weftHalf = 6,
  weftFloat32 = 7,
  weftFloat = 7,
  weftFloat64 = 8,
  weftDouble = 8,
  weftBfloat16 = 9,
  weftFloat8e4m3 = 10, /* OCP E4M3: no infinity, maximum 448, overflow rounds to NaN */
  weftFloat8e5m2 = 11, /* OCP E5M2 */
  weftNumTypes = 12
} weftDataType_t;

typedef enum {
  weftSum = 0,
  weftProd = 1,
  weftMax = 2,
  weftMin = 3,
  weftAvg = 4,
  weftNumOps = 5, /* from here on: made by weftRedOpCreatePreMulSum */
  weftMaxRedOp = 0x7fffffff
} weftRedOp_t;

typedef enum {
  weftScalarDevice = 0,       /* the scalar is read when the collective runs */
  weftScalarHostImmediate = 1 /* the scalar is read before the call returns */
} weftScalarResidence_t;

typedef enum {
  weftAccumulateDefault = 0, /* as WEFT_ACCUM says (narrow unless set) */
  weftAccumulateNarrow = 1,  /* one rounding to the data type per hop */
  weftAccumulateWide = 2     /* fp16, bf16 and fp8 partial results travel as fp32 */
} weftAccumulate_t;

typedef struct weftComm* weftComm_t;
typedef struct weftStream* weftStream_t;
typedef struct weftWindow* weftWindow_t;

#define WEFT_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[WEFT_UNIQUE_ID_BYTES];
} weftUniqueId;

/* A communicator's configuration. Start from WEFT_CONFIG_INITIALIZER; a field left alone takes the value of its
 * environment variable, or the default. */
typedef struct {
  size_t size;    /* sizeof(weftConfig_t) of the caller */
  uint32_t magic; /* both set by the initializer */
  uint32_t version;
  int blocking;          /* 1 (default): calls block. 0: they return weftInProgress; poll weftCommGetAsyncError */
  int64_t timeoutMs;     /* longest wait of one operation for its peers, milliseconds; WEFT_TIMEOUT */
  int64_t initTimeoutMs; /* longest wait of weftCommInit* for the other ranks, milliseconds; WEFT_INIT_TIMEOUT */
  int accumulate;        /* a weftAccumulate_t; WEFT_ACCUM */
  const char* transport; /* comma-separated transports allowed (loop, shm, verbs, tcp, ucx); WEFT_TRANSPORT */
  const char* algo;      /* forced algorithms, "ring" or "allreduce:ring,broadcast:chain"; WEFT_ALGO */
  const char* netName;   /* network interfaces, "eth0", "=eth0", "^docker,lo"; WEFT_SOCKET_IFNAME */
  const char* commName;  /* a label for logs and weft-info */
} weftConfig_t;

#define WEFT_CONFIG_MAGIC 0x77656674u
#define WEFT_CONFIG_UNDEF_INT (-2147483647 - 1)
#define WEFT_CONFIG_INITIALIZER                                                                               \
  {                                                                                                           \
    sizeof(weftConfig_t), WEFT_CONFIG_MAGIC, WEFT_VERSION_CODE, WEFT_CONFIG_UNDEF_INT, WEFT_CONFIG_UNDEF_INT, \
        WEFT_CONFIG_UNDEF_INT, WEFT_CONFIG_UNDEF_INT, NULL, NULL, NULL, NULL                                  \
  }

/* ---- Version and errors ---------------------------------------------------------------------------------------- */

/* Stores WEFT_VERSION_CODE of the library that is loaded. */
WEFT_API weftResult_t weftGetVersion(int* version);
/* A constant string that names the result code. */
WEFT_API const char* weftGetErrorString(weftResult_t result);
/* One sentence on the last failure: of `comm`, or of the calling thread where comm is NULL. Empty when there was none.
 * The string is valid until the calling thread's next Weft call. */
WEFT_API const char* weftGetLastError(weftComm_t comm);

/* ---- Communicators --------------------------------------------------------------------------------------------- */

/* Makes an id, with a random secret, that one process creates and hands to all others by any means. From then on this
 * process listens for the ranks. */
WEFT_API weftResult_t weftGetUniqueId(weftUniqueId* uniqueId);
/* Joins as `rank` of `nranks` (0 <= rank < nranks). Returns when all ranks have joined or initTimeoutMs is over. */
WEFT_API weftResult_t weftCommInitRank(weftComm_t* comm, int nranks, weftUniqueId commId, int rank);
WEFT_API weftResult_t weftCommInitRankConfig(weftComm_t* comm, int nranks, weftUniqueId commId, int rank,
                                             weftConfig_t* config);
/* Joins the job that a launcher started us in: weft-run (WEFT_RANK, WEFT_WORLD_SIZE, ...), torchrun, Open MPI, MPICH
 * or Slurm. Without a launcher it makes a communicator of one rank. config may be NULL. */
WEFT_API weftResult_t weftCommInitEnv(weftComm_t* comm, weftConfig_t* config);
/* ndev ranks in this process, comms[0..ndev-1], each to be used from a thread of its own or in a group. The devices in
 * devlist are not used for host memory; NULL is legal. */
WEFT_API weftResult_t weftCommInitAll(weftComm_t* comms, int ndev, const int* devlist);
/* Collective over comm. Ranks with the same colour form a new communicator, ordered by key, then by rank. Colour
 * WEFT_SPLIT_NOCOLOR stores NULL. config may be NULL: the parent's. Other calls on comm go on meanwhile. */
#define WEFT_SPLIT_NOCOLOR (-1)
WEFT_API weftResult_t weftCommSplit(weftComm_t comm, int color, int key, weftComm_t* newcomm, weftConfig_t* config);
/* A new communicator of all ranks but those listed, ordered by rank; called by every remaining rank, not by the
 * excluded ones, which may be dead. WEFT_SHRINK_ABORT also ends what is in flight on comm first. After a failure, as
 * when one more rank turns out to be dead, it may be called again. config may be NULL: the parent's. */
#define WEFT_SHRINK_DEFAULT 0x00
#define WEFT_SHRINK_ABORT 0x01
WEFT_API weftResult_t weftCommShrink(weftComm_t comm, int* excludeRanksList, int excludeRanksCount, weftComm_t* newcomm,
                                     weftConfig_t* config, int shrinkFlags);
/* Waits until all operations on comm are done, here and at the peers that need us. */
WEFT_API weftResult_t weftCommFinalize(weftComm_t comm);
/* Releases comm; finalizes it first where that was not done. */
WEFT_API weftResult_t weftCommDestroy(weftComm_t comm);
/* Ends all operations on comm with weftAborted within a second, from any thread, and tells the other ranks; so it does
 * with an initialisation that goes on in the background. comm must still be released with weftCommDestroy. */
WEFT_API weftResult_t weftCommAbort(weftComm_t comm);
/* weftSuccess, weftInProgress, or the error that ended comm. */
WEFT_API weftResult_t weftCommGetAsyncError(weftComm_t comm, weftResult_t* asyncError);
WEFT_API weftResult_t weftCommCount(const weftComm_t comm, int* count);
WEFT_API weftResult_t weftCommUserRank(const weftComm_t comm, int* rank);
/* Changes the operation timeout, in milliseconds (100 to 2^31); also for operations in flight. */
WEFT_API weftResult_t weftCommSetTimeout(weftComm_t comm, int64_t timeoutMs);

/* Counters of a communicator, summed over its wires. This and weftCommDump wait for nobody: they may be asked while
 * other threads' calls are under way, or hang. */
typedef struct {
  size_t size; /* in: sizeof(weftStats_t) */
  uint64_t operations;
  uint64_t bytesSent;
  uint64_t bytesReceived;
  uint64_t messagesSent;
  uint64_t messagesReceived;
} weftStats_t;
WEFT_API weftResult_t weftCommGetStats(weftComm_t comm, weftStats_t* stats);
typedef enum { weftDumpJson = 0, weftDumpPrometheus = 1 } weftDumpFormat_t;
/* Writes the counters of every wire and the flight recorder (the last operations) as text. *length is the size of
 * buffer in bytes and becomes the size of the text, terminator included; weftInvalidArgument when it does not fit. */
WEFT_API weftResult_t weftCommDump(weftComm_t comm, weftDumpFormat_t format, char* buffer, size_t* length);

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/* size bytes that other processes of this host can map: collectives on them read the peer's memory in place. The ranks
 * of a host get each other's mappings with the first message that comes from the memory, or with a window. */
WEFT_API weftResult_t weftMemAlloc(void** ptr, size_t size);
/* ptr is from weftMemAlloc, or NULL, and no call that uses it is under way. Peers unmap it in their own time. */
WEFT_API weftResult_t weftMemFree(void* ptr);
/* Local. Makes memory known to devices that must register what they read and write (verbs), until weftCommDeregister;
 * weftSystemError names the limit that is in the way. Without it that happens at the first use, and is remembered for
 * as long as the memory is mapped. With other transports it checks the arguments and hands out a handle. Memory may be
 * freed first, but what is registered keeps its pages until then. */
WEFT_API weftResult_t weftCommRegister(const weftComm_t comm, void* buff, size_t size, void** handle);
/* weftInvalidArgument where handle is not one of comm's, or no longer. */
WEFT_API weftResult_t weftCommDeregister(const weftComm_t comm, void* handle);
/* Collective: every rank registers size bytes, the same number on all (weftInvalidUsage otherwise; comm stays usable).
 * Ranks that share a host by shm exchange the mappings of weftMemAlloc's memory and connect, all with all, so that no
 * later call has to: from the first call on, what a rank sends from its window is read where it lies. Memory of any
 * other origin is legal, also on some ranks only; it goes the way it always goes (and WEFT_DEBUG=INFO says so). The
 * call blocks, also where comm does not. In a group, windows are made at weftGroupEnd, before its other calls. Use of
 * the memory is not bound to the window: calls on parts of it, and after the window's end, are served as well. */
#define WEFT_WIN_DEFAULT 0x00
WEFT_API weftResult_t weftCommWindowRegister(weftComm_t comm, void* buff, size_t size, weftWindow_t* win, int winFlags);
/* Local. weftInvalidArgument where win is not a window of comm, or no longer. The mappings stay until the memory is
 * freed or comm is destroyed. */
WEFT_API weftResult_t weftCommWindowDeregister(weftComm_t comm, weftWindow_t win);

/* ---- Streams --------------------------------------------------------------------------------------------------- */

/* An in-order asynchronous queue on the host. */
WEFT_API weftResult_t weftStreamCreate(weftStream_t* stream);
/* Waits for all that was enqueued, and returns the first error since the last synchronisation. */
WEFT_API weftResult_t weftStreamSynchronize(weftStream_t stream);
/* weftSuccess when idle, weftInProgress while work is left. */
WEFT_API weftResult_t weftStreamQuery(weftStream_t stream);
/* Synchronises, then releases. */
WEFT_API weftResult_t weftStreamDestroy(weftStream_t stream);

/* ---- Reductions ------------------------------------------------------------------------------------------------ */

/* op becomes sum(scalar * x_i). scalar points to one element of datatype. */
WEFT_API weftResult_t weftRedOpCreatePreMulSum(weftRedOp_t* op, void* scalar, weftDataType_t datatype,
                                               weftScalarResidence_t residence, weftComm_t comm);
WEFT_API weftResult_t weftRedOpDestroy(weftRedOp_t op, weftComm_t comm);

/* ---- Collectives ----------------------------------------------------------------------------------------------- */
/* n is the number of ranks, r the caller's. "in place" gives the legal overlap. */

/* recvbuff[i] = op over ranks of sendbuff[i]; count elements each. In place: sendbuff == recvbuff. */
WEFT_API weftResult_t weftAllReduce(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype,
                                    weftRedOp_t op, weftComm_t comm, weftStream_t stream);
/* As weftAllReduce, at root only; recvbuff is not used elsewhere. */
WEFT_API weftResult_t weftReduce(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype,
                                 weftRedOp_t op, int root, weftComm_t comm, weftStream_t stream);
/* recvbuff of every rank = root's sendbuff; sendbuff is not used elsewhere. In place: sendbuff == recvbuff. */
WEFT_API weftResult_t weftBroadcast(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype,
                                    int root, weftComm_t comm, weftStream_t stream);
/* As weftBroadcast in place. */
WEFT_API weftResult_t weftBcast(void* buff, size_t count, weftDataType_t datatype, int root, weftComm_t comm,
                                weftStream_t stream);
/* recvbuff[j*sendcount + i] = rank j's sendbuff[i]. In place: sendbuff == recvbuff + r*sendcount. */
WEFT_API weftResult_t weftAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, weftDataType_t datatype,
                                    weftComm_t comm, weftStream_t stream);
/* Block r (recvcount elements) of the reduction of n*recvcount elements. In place: recvbuff == sendbuff + r*recvcount.
 */
WEFT_API weftResult_t weftReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, weftDataType_t datatype,
                                        weftRedOp_t op, weftComm_t comm, weftStream_t stream);
/* recvbuff[j*count + i] = rank j's sendbuff[r*count + i]. In place: sendbuff == recvbuff. */
WEFT_API weftResult_t weftAlltoAll(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype,
                                   weftComm_t comm, weftStream_t stream);
/* At root: recvbuff[j*count + i] = rank j's sendbuff[i]; recvbuff is not used elsewhere. In place at root:
 * sendbuff == recvbuff + root*count. */
WEFT_API weftResult_t weftGather(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, int root,
                                 weftComm_t comm, weftStream_t stream);
/* recvbuff[i] = root's sendbuff[r*count + i]; sendbuff is used at root only. In place at root:
 * recvbuff == sendbuff + root*count. */
WEFT_API weftResult_t weftScatter(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, int root,
                                  weftComm_t comm, weftStream_t stream);
/* Returns when every rank has called it. */
WEFT_API weftResult_t weftBarrier(weftComm_t comm, weftStream_t stream);

/* The v-variants: counts and displacements are arrays of n elements, in elements. A displacement whose count is 0 is
 * never read. All ranks give the same counts (and any displacements) to AllGatherv and ReduceScatterv; in AlltoAllv
 * rank i's sendcounts[j] equals rank j's recvcounts[i]; in Gatherv and Scatterv the arrays are read at root only and
 * the scalar count is the caller's own.
 * In place: AllGatherv sendbuff == recvbuff + displs[r]; ReduceScatterv recvbuff == sendbuff + displs[r]; Gatherv at
 * root sendbuff == recvbuff + displs[root]; Scatterv at root recvbuff == sendbuff + displs[root]; AlltoAllv none. */
WEFT_API weftResult_t weftAllGatherv(const void* sendbuff, size_t sendcount, void* recvbuff, const size_t recvcounts[],
                                     const size_t displs[], weftDataType_t datatype, weftComm_t comm,
                                     weftStream_t stream);
WEFT_API weftResult_t weftReduceScatterv(const void* sendbuff, const size_t sendcounts[], const size_t displs[],
                                         void* recvbuff, size_t recvcount, weftDataType_t datatype, weftRedOp_t op,
                                         weftComm_t comm, weftStream_t stream);
WEFT_API weftResult_t weftAlltoAllv(const void* sendbuff, const size_t sendcounts[], const size_t sdispls[],
                                    void* recvbuff, const size_t recvcounts[], const size_t rdispls[],
                                    weftDataType_t datatype, weftComm_t comm, weftStream_t stream);
WEFT_API weftResult_t weftGatherv(const void* sendbuff, size_t sendcount, void* recvbuff, const size_t recvcounts[],
                                  const size_t displs[], weftDataType_t datatype, int root, weftComm_t comm,
                                  weftStream_t stream);
WEFT_API weftResult_t weftScatterv(const void* sendbuff, const size_t sendcounts[], const size_t displs[],
                                   void* recvbuff, size_t recvcount, weftDataType_t datatype, int root, weftComm_t comm,
                                   weftStream_t stream);

/* ---- Mixture of experts ---------------------------------------------------------------------------------------- */

/* Tokens to the ranks of their experts, and the weighted sum of what the experts make of them back. Rank r has experts
 * r*experts/n to (r+1)*experts/n - 1. A token crosses to a node (docs/topology.md) once, however many of its experts
 * are there, and fans out inside; on the way back what a rank's, then a node's experts made of it is added up before it
 * goes on. Counts are exchanged first, so any routing is legal: experts without tokens, all tokens to one expert. */
typedef struct weftMoe* weftMoe_t;
typedef struct {
  size_t size;             /* sizeof(weftMoeConfig_t) */
  int experts;             /* of all ranks; a multiple of n, at most 32767 of a rank */
  int topk;                /* experts of a token, at most 64 */
  size_t hidden;           /* elements of a token */
  weftDataType_t datatype; /* weftFloat32, weftFloat16 or weftBfloat16 */
  weftDataType_t wire;     /* how tokens are dispatched: datatype, or weftFloat8e4m3 with a float scale for each 128
                            * elements (the largest of them becomes 448); a NaN stays one, an infinity becomes one */
} weftMoeConfig_t;
/* Local; all ranks give the same configuration (weftInvalidUsage at the first dispatch otherwise). comm must block, and
 * outlive the handle. */
WEFT_API weftResult_t weftMoeCreate(weftMoe_t* moe, weftComm_t comm, const weftMoeConfig_t* config);
WEFT_API weftResult_t weftMoeDestroy(weftMoe_t moe);
/* Collective. tokens: [ntokens][hidden]; experts: [ntokens][topk], -1 for none, an expert at most once for a token;
 * weights: the same shape, finite. Fills rows, [*total][hidden], with the tokens of this rank's experts, those of the
 * first expert first, then by the ranks that they come through and the order in which those have them; counts:
 * [experts/n], how many rows each expert has. capacity: rows that there is room for; weftInvalidUsage where it is too
 * small, with *total set, and nothing is lost: call weftMoeRows with enough. Blocks. */
WEFT_API weftResult_t weftMoeDispatch(weftMoe_t moe, const void* tokens, const int32_t* experts, const float* weights,
                                      size_t ntokens, void* rows, size_t capacity, size_t* counts, size_t* total);
/* Local: the rows of the last dispatch, again. */
WEFT_API weftResult_t weftMoeRows(weftMoe_t moe, void* rows, size_t capacity);
/* Collective, after a dispatch: rows, as the dispatch gave them, hold what the experts made of them; out, of as many
 * tokens as were dispatched, becomes for each the sum of weight * row over its experts (0 for one without). Added up in
 * float and rounded to datatype once at the expert's rank, once on its node, and once here. Blocks. */
WEFT_API weftResult_t weftMoeCombine(weftMoe_t moe, const void* rows, void* out);

/* ---- Point to point, groups ------------------------------------------------------------------------------------ */

/* Matched by pair of ranks, in order; both sides give the same count and type. To oneself only inside a group. */
WEFT_API weftResult_t weftSend(const void* sendbuff, size_t count, weftDataType_t datatype, int peer, weftComm_t comm,
                               weftStream_t stream);
WEFT_API weftResult_t weftRecv(void* recvbuff, size_t count, weftDataType_t datatype, int peer, weftComm_t comm,
                               weftStream_t stream);
/* Calls between Start and End are issued together at End: point-to-point calls make progress at once, and
 * communicators of one thread do not wait for each other. Groups nest; the outermost End issues. An error in one call
 * is returned there and by End, which then issues nothing. weftCommInitRank*, weftCommInitEnv, weftCommSplit and
 * weftCommShrink in a group store the communicator at once and make it at End; where that fails it must still be
 * released with weftCommDestroy. What has calls in the group cannot be finalized or destroyed in it. */
WEFT_API weftResult_t weftGroupStart(void);
WEFT_API weftResult_t weftGroupEnd(void);

#ifdef __cplusplus
}
#endif
#endif /* WEFT_WEFT_H_ */
