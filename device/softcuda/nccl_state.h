// nccl_state.h - what the parts of the software NCCL share: the file between ranks, communicators,
// operations, and how far each has come.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

namespace softcuda_nccl {

enum Result {
    Success = 0,
    CudaError,
    SystemError,
    InternalError,
    InvalidArgument,
    InvalidUsage,
    RemoteError,
    InProgress
};
enum CudaResult { IllegalAddress = 700, LaunchFailed = 719 };
enum Kind : uint32_t { Message = 1, AllReduce, AllGather, Broadcast, Reduce };
inline const char* const kind_names[] = {
    "nothing", "send/receive", "all-reduce", "all-gather", "broadcast", "reduce",
};
inline const size_t type_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

// --- the shared file -----------------------------------------------------------------------------
constexpr size_t ring_bytes = 64 << 10;
// A chunk is added up when all ranks' parts of it are there.
constexpr size_t chunk_bytes = 16 << 10;
constexpr int most_ranks = 256;

// What the bytes of one rank for another travel through. One writer, one reader.
struct Ring {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
    alignas(64) unsigned char data[ring_bytes];
};

struct Seat {
    std::atomic<int> arrived;
    std::atomic<int> gone;  // aborted, or its process has ended
    int process;
    int device;
};

struct Shared {
    std::atomic<uint64_t> moves;  // bumped whenever something has moved
    std::atomic<int> failed;      // some rank has found a misuse: everybody stops
    std::atomic<int> num_arrived;
    char reason[400];
    Seat seats[most_ranks];
    Ring rings[];  // [from * ranks + to]
};

struct Header {
    uint32_t kind, type, op, root;
    uint64_t count;
};

inline bool same(const Header& a, const Header& b) { return memcmp(&a, &b, sizeof a) == 0; }

// --- communicators and operations ----------------------------------------------------------------
struct Comm {
    int rank, ranks, device;
    size_t map_bytes;
    Shared* shared;
    std::atomic<int> aborted{0};
    // What ncclCommGetAsyncError answers, for errors found on this rank.
    std::atomic<int> state{Success};
    std::atomic<int> group_in_progress{0};
    void* running = nullptr;  // the state of the group that is at the head of a stream
    std::string last, path;

    Ring& to(int peer) { return shared->rings[rank * ranks + peer]; }
    Ring& from(int peer) { return shared->rings[peer * ranks + rank]; }
};

// One operation of a group. Plain data: it is copied into the stream, and into graphs.
struct Op {
    Header header;
    const unsigned char* from;
    unsigned char* to;
    int peer;       // of messages
    bool receives;  // of messages
};

struct Group {
    Comm* comm;
    uint32_t num_ops;
};

inline thread_local std::string last_error;

std::string describe(const Header& h);

// Keeps the words for ncclGetLastError, and gives `code` back.
int fail(Comm* comm, int code, const char* format, ...);

// A misuse that concerns every rank: all stop, and hear the same words.
int misuse(Comm* comm, const std::string& text);

// --- moving bytes --------------------------------------------------------------------------------
// Progress of one operation with one peer: bytes of header and payload, both ways. Zero at the
// beginning of each execution.
struct Progress {
    uint64_t sent, got;
};

// What an operation sends to and receives from `peer`; no length: nothing travels that way, not
// even a header.
struct Parcel {
    const unsigned char* from = nullptr;
    unsigned char* to = nullptr;
    size_t send = 0, receive = 0;
    bool sends = false, receives = false;
};

Parcel parcel(const Comm& comm, const Op& op, int peer);

inline bool adds(const Op& op) {
    return op.header.kind == AllReduce || op.header.kind == Reduce;
}

inline bool is_root(const Comm& comm, const Op& op) { return comm.rank == (int)op.header.root; }

// Whether this rank makes a sum.
inline bool is_sum(const Comm& comm, const Op& op) {
    return op.header.kind == AllReduce || (op.header.kind == Reduce && is_root(comm, op));
}

// Bytes in the ring that have not been taken.
size_t ring_filled(Ring& ring);

// Sends what fits; whether anything has moved.
bool send_some(Comm& comm, const Op& op, int peer, const Parcel& p, Progress& progress);

// Receives the header once it is whole: 1 moved, 0 not yet, -1 it does not fit.
int receive_header(Comm& comm, const Op& op, int peer, Progress& progress);

// Receives what has come; whether anything has moved.
bool receive_some(Comm& comm, int peer, const Parcel& p, Progress& progress);

// Adds the next chunk when every rank's part of it has come and this rank's own part has left: `to`
// may be `from`.
bool sum_some(Comm& comm, const Op& op, Progress* progress);

}  // namespace softcuda_nccl
