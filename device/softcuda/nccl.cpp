// nccl.cpp - a software NCCL (libnccl.so.2) for the software device. Test-only: never linked into a
// release.
//
// What it keeps of NCCL's rules: group calls, sends and receives matched in order per pair of
// ranks, the same collectives in the same order on every rank, capture and replay, non-blocking
// communicators that answer "in progress", one rank per device, aborts that only end this rank's
// waiting. What it is stricter about: a send has only happened when it was received; counts, types
// and kinds that do not fit are an error on every rank instead of a hang; operations of one
// communicator may not be at the heads of two streams at once. What it does otherwise: sums are
// added in rank order. What no one here calls is left out: only f32 is summed, and communicators do
// not block.
//
// Ranks are threads of one process, or processes of one machine and user: bytes travel through
// rings in a shared file, one ring for each ordered pair of ranks. A collective is made of such
// messages. Each message begins with a header that both sides compare. Everything happens in polled
// operations (collective.h): a poll moves what can be moved now. It is compiled without
// instrumentation, also for a sanitizer, and tells which bytes of devices it reads and writes.
#include "collective.h"
#include "enqueue.h"
#include "nccl_state.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

using namespace softcuda_nccl;

namespace {

// --- one execution of a group --------------------------------------------------------------------
struct Execution {
    uint32_t begun;
    Progress progress[];  // [op * ranks + peer]
};

// What this rank itself has of the result.
void own_part(const Comm& comm, const Op& op) {
    size_t bytes = op.header.count * type_bytes[op.header.type];
    unsigned char* to = nullptr;
    if (op.header.kind == AllGather) to = op.to + comm.rank * bytes;
    if (op.header.kind == Broadcast && is_root(comm, op)) to = op.to;
    if (!to || to == op.from) return;
    memmove(to, op.from, bytes);
    softcudaReads(op.from, bytes);
    softcudaWrites(to, bytes);
}

// 0, or the error of an address that is not the device's.
int check_addresses(Comm& comm, const Op& op) {
    size_t bytes = op.header.count * type_bytes[op.header.type];
    size_t writes = bytes * (op.header.kind == AllGather ? comm.ranks : 1);
    bool is_message = op.header.kind == Message;
    bool reading = !(is_message && op.receives) &&
                   !(op.header.kind == Broadcast && !is_root(comm, op));
    bool writing = is_message ? op.receives : op.header.kind != Reduce || is_root(comm, op);
    const struct { const void* at; size_t bytes; bool used; const char* what; } ranges[] = {
        {op.from, bytes, reading, "reads"}, {op.to, writes, writing, "writes"}};
    for (auto& range : ranges) {
        int device = -1;
        if (!range.used || range.bytes == 0) continue;
        bool mapped = softcudaIsMapped(range.at, range.bytes, &device);
        if (!mapped || (device >= 0 && device != comm.device)) {
            char text[300];
            snprintf(text, sizeof text, "rank %d: %s %s %zu bytes at %p, which are %s", comm.rank,
                     describe(op.header).c_str(), range.what, range.bytes, range.at,
                     mapped ? "of another device" : "no memory of a device");
            misuse(&comm, text);
            return IllegalAddress;
        }
    }
    return 0;
}

// What sends of this process have carried to other ranks, without headers.
std::atomic<uint64_t> message_bytes{0};

// Moves one operation on; whether it is done comes back in `done`.
bool advance(Comm& comm, const Op& op, Progress* progress, bool* may_send, bool* may_receive,
             bool& done) {
    bool moved = false;
    done = true;
    for (int peer = 0; peer < comm.ranks; peer++) {
        Parcel p = parcel(comm, op, peer);
        Progress& row = progress[peer];
        if (p.sends) {
            if (may_send[peer]) moved |= send_some(comm, op, peer, p, row);
            bool whole = row.sent == sizeof(Header) + p.send;
            // Sent is what was received: else two ranks that both send first would get away with
            // it.
            bool taken = whole && may_send[peer] && ring_filled(comm.to(peer)) == 0;
            if (row.sent != UINT64_MAX && taken) {
                row.sent = UINT64_MAX, moved = true;
                if (op.header.kind == Message && peer != comm.rank) message_bytes += p.send;
            }
            if (row.sent != UINT64_MAX) may_send[peer] = done = false;
        }
        if (p.receives) {
            if (may_receive[peer]) {
                int header = receive_header(comm, op, peer, row);
                if (header < 0) return true;
                moved |= header > 0;
                if (!is_sum(comm, op)) moved |= receive_some(comm, peer, p, row);
            }
            if (row.got != sizeof(Header) + p.receive) may_receive[peer] = done = false;
        }
    }
    if (is_sum(comm, op)) {
        size_t bytes = op.header.count * type_bytes[op.header.type];
        while (sum_some(comm, op, progress)) moved = true;
        if (progress[comm.rank].got != bytes) done = false;
    }
    return moved;
}

int finish_group(Comm& comm, int code) {
    comm.running = nullptr;
    comm.shared->moves.fetch_add(1);
    return code;
}

int poll_group(const void* argument, void* state, void*) {
    const Group& group = *static_cast<const Group*>(argument);
    const Op* ops = reinterpret_cast<const Op*>(static_cast<const Group*>(argument) + 1);
    Comm& comm = *group.comm;
    Execution& execution = *static_cast<Execution*>(state);
    if (comm.aborted) return SOFTCUDA_DONE;
    if (!comm.shared) {
        fprintf(stderr, "softcuda nccl: an operation of a communicator that is destroyed\n");
        return LaunchFailed;
    }
    if (comm.shared->failed) {
        comm.state = InvalidUsage;
        return finish_group(comm, LaunchFailed);
    }
    if (!execution.begun) {
        if (comm.running) {
            return misuse(&comm, "rank " + std::to_string(comm.rank) +
                                     " has operations of one communicator at the heads of two "
                                     "streams: their order is undefined");
        }
        for (uint32_t i = 0; i < group.num_ops; i++) {
            if (int code = check_addresses(comm, ops[i])) return code;
        }
        for (uint32_t i = 0; i < group.num_ops; i++) own_part(comm, ops[i]);
        execution.begun = 1;
        comm.running = state;
    }
    // Between two ranks, operations of a group keep their order; the flags close a direction that
    // is still busy.
    bool may_send[most_ranks], may_receive[most_ranks], all_done = true, any_moved = false;
    for (int peer = 0; peer < comm.ranks; peer++) may_send[peer] = may_receive[peer] = true;
    for (uint32_t i = 0; i < group.num_ops; i++) {
        bool done = false;
        any_moved |=
            advance(comm, ops[i], execution.progress + i * comm.ranks, may_send, may_receive, done);
        all_done &= done;
        if (comm.shared->failed) return finish_group(comm, LaunchFailed);
    }
    if (any_moved) {
        comm.shared->moves.fetch_add(1);
        softcudaWake();
    }
    return all_done ? finish_group(comm, SOFTCUDA_DONE) : SOFTCUDA_WAIT;
}

// --- groups of calls -----------------------------------------------------------------------------
struct Listed {
    Comm* comm;
    void* stream;
    Op op;
};

thread_local int group_depth = 0;
thread_local int group_error = Success;
thread_local std::vector<Listed> listed;

// What this process has put on streams, each group once.
std::atomic<uint64_t> num_enqueued{0};

int enqueue(Comm* comm, void* stream, const std::vector<Op>& ops) {
    num_enqueued++;
    std::vector<unsigned char> bytes(sizeof(Group) + ops.size() * sizeof(Op));
    Group group{comm, (uint32_t)ops.size()};
    memcpy(bytes.data(), &group, sizeof group);
    memcpy(bytes.data() + sizeof group, ops.data(), ops.size() * sizeof(Op));
    size_t state = sizeof(Execution) + ops.size() * comm->ranks * sizeof(Progress);
    std::string name = std::string("nccl ") + kind_names[ops[0].header.kind];
    int code = softcudaEnqueuePoll(stream, name.c_str(), poll_group, bytes.data(), bytes.size(),
                                   state, nullptr);
    if (code) return fail(comm, CudaError, "enqueueing failed with CUDA error %d", code);
    return Success;
}

int end_group() {
    std::vector<Listed> ops;
    ops.swap(listed);
    int code = group_error;
    group_error = Success;
    bool in_progress = false;
    // One operation on the stream for each communicator and stream, in the order of the first call.
    while (code == Success && !ops.empty()) {
        Comm* comm = ops[0].comm;
        void* stream = ops[0].stream;
        std::vector<Op> same_place;
        std::vector<Listed> others;
        for (auto& one : ops) {
            if (one.comm == comm && one.stream == stream) same_place.push_back(one.op);
            else others.push_back(one);
        }
        code = enqueue(comm, stream, same_place);
        ops.swap(others);
        comm->group_in_progress = 1, in_progress = true;
    }
    return code == Success && in_progress ? InProgress : code;
}

int list(Comm* comm, void* stream, Op op, const char* function) {
    int code = Success;
    if (!comm || !comm->shared || comm->aborted)
        code = fail(comm, InvalidArgument, "%s: the communicator is no more", function);
    else if (op.header.type > 9)
        code = fail(comm, InvalidArgument, "%s: type %u", function, op.header.type);
    else if (op.header.op != 0 || (adds(op) && op.header.type != 7))
        code = fail(comm, InvalidArgument, "%s: operation %u of type %u, not a sum of f32",
                    function, op.header.op, op.header.type);
    else if ((int)op.header.root >= comm->ranks || op.peer < 0 || op.peer >= comm->ranks)
        code = fail(comm, InvalidArgument, "%s: there are %d ranks", function, comm->ranks);
    else if (comm->shared->num_arrived != comm->ranks)
        code = fail(comm, InvalidUsage, "%s: not all ranks have come", function);
    else if (softcudaStreamDevice(stream) != comm->device)
        code = fail(comm, InvalidArgument,
                    "%s: a stream of device %d, but the communicator is of device %d", function,
                    softcudaStreamDevice(stream), comm->device);
    if (code != Success) {
        if (group_depth && group_error == Success) group_error = code;
        return code;
    }
    listed.push_back({comm, stream, op});
    return group_depth ? Success : end_group();
}

// --- coming together -----------------------------------------------------------------------------
struct Id {
    char magic[16];
    char path[96];
    uint64_t unused[2];
};
static_assert(sizeof(Id) == 128);

void watch(Comm* comm);

Shared* open_shared(const Id& id, int ranks, size_t& bytes) {
    bytes = sizeof(Shared) + sizeof(Ring) * ranks * ranks;
    int file = open(id.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return nullptr;
    void* memory = MAP_FAILED;
    if (ftruncate(file, (off_t)bytes) == 0)
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
}

int arrive(Comm** made, int ranks, Id id, int rank) {
    *made = nullptr;
    if (memcmp(id.magic, "softcuda nccl 1", 16) != 0)
        return fail(nullptr, InvalidArgument, "the unique id was not made by the software NCCL");
    if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks)
        return fail(nullptr, InvalidArgument, "rank %d of %d (at most %d)", rank, ranks,
                    most_ranks);
    int device = softcudaStreamDevice(nullptr);
    if (device < 0) return fail(nullptr, CudaError, "no CUDA context is current");
    size_t bytes = 0;
    Shared* shared = open_shared(id, ranks, bytes);
    if (!shared) return fail(nullptr, SystemError, "%s: %s", id.path, strerror(errno));
    Seat& seat = shared->seats[rank];
    if (seat.arrived.exchange(1))
        return fail(nullptr, InvalidUsage, "rank %d has come twice", rank);
    auto* comm = new Comm;
    comm->rank = rank, comm->ranks = ranks, comm->device = device;
    comm->map_bytes = bytes, comm->shared = shared, comm->path = id.path;
    seat.process = getpid();
    seat.device = device;
    seat.arrived = 2;
    // The last to come closes the meeting, and looks whether two ranks share a device, which NCCL
    // refuses.
    if (shared->num_arrived.fetch_add(1) + 1 == ranks) {
        unlink(id.path);
        for (int a = 0; a < ranks; a++)
            for (int b = 0; b < a; b++)
                if (shared->seats[a].process == shared->seats[b].process &&
                    shared->seats[a].device == shared->seats[b].device)
                    misuse(comm, "ranks " + std::to_string(b) + " and " + std::to_string(a) +
                                     " are on one device");
        shared->moves.fetch_add(1);
    }
    *made = comm;
    watch(comm);
    return Success;
}

int state_of(Comm* comm) {
    if (!comm->shared) return comm->state;
    if (comm->shared->failed)
        return fail(comm, InvalidUsage, "%s",
                    comm->shared->failed == 2 ? comm->shared->reason : "");
    if (comm->shared->num_arrived != comm->ranks) return InProgress;
    for (int peer = 0; peer < comm->ranks; peer++)
        if (peer != comm->rank && comm->shared->seats[peer].gone)
            return fail(comm, RemoteError, "rank %d is gone", peer);
    return Success;
}

// Where a rank is another process, no one here notices what it moves, or that it has ended: a
// thread looks.
void watch(Comm* comm) {
    std::thread([comm] {
        uint64_t seen = 0;
        for (int look = 0;; look++) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            softcudaLock();
            Shared* shared = comm->aborted ? nullptr : comm->shared;
            bool here = shared && shared->num_arrived == comm->ranks, foreign = false;
            for (int peer = 0; here && peer < comm->ranks; peer++) {
                Seat& seat = shared->seats[peer];
                if (seat.process == getpid()) continue;
                foreign = true;
                if (look % 256 == 0 && kill(seat.process, 0) != 0 && errno == ESRCH) seat.gone = 1;
            }
            bool moved = here && shared->moves != seen;
            if (here) seen = shared->moves;
            softcudaUnlock();
            if (moved && foreign) softcudaWake();
            if (!shared || (here && !foreign)) return;
        }
    }).detach();
}

// The communicator itself stays: graphs may still name it. Its memory goes when nothing of it runs.
int leave(Comm* comm, bool aborts) {
    if (!comm) return Success;
    softcudaLock();
    Shared* shared = comm->shared;
    if (shared) {
        if (aborts) shared->seats[comm->rank].gone = 1;
        shared->moves.fetch_add(1);
        if (shared->num_arrived != comm->ranks) unlink(comm->path.c_str());
    }
    if (aborts) comm->aborted = 1;
    if (shared && (aborts || !comm->running)) {
        comm->shared = nullptr;
        munmap(shared, comm->map_bytes);
    }
    softcudaUnlock();
    softcudaWake();
    return Success;
}

Op message(const void* from, void* to, size_t count, int type, int peer) {
    Op op{{Message, (uint32_t)type, 0, 0, count},
          static_cast<const unsigned char*>(from),
          static_cast<unsigned char*>(to),
          peer,
          to != nullptr};
    return op;
}

Op collective(Kind kind, const void* from, void* to, size_t count, int type, int op, int root) {
    return Op{{kind, (uint32_t)type, (uint32_t)op, (uint32_t)root, count},
              static_cast<const unsigned char*>(from),
              static_cast<unsigned char*>(to),
              0,
              false};
}

}  // namespace

// --- NCCL's functions ----------------------------------------------------------------------------
#pragma GCC visibility push(default)
extern "C" {

struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

// By this the device layer tells it from NVIDIA's.
int softcudaNcclIsSoftware() { return 1; }

// Bytes that sends (not collectives) of this process have carried to other ranks.
unsigned long long softcudaNcclMessageBytes() { return message_bytes.load(); }

// Operations that this process has put on streams, each group as one.
unsigned long long softcudaNcclOperations() { return num_enqueued.load(); }

int ncclGetVersion(int* version) {
    *version = 22809;
    return Success;
}

int ncclGetUniqueId(Id* id) {
    static std::atomic<uint64_t> number{0};
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *id = Id{};
    snprintf(id->magic, sizeof id->magic, "softcuda nccl 1");
    const char* folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(id->path, sizeof id->path, "%s/softcuda-nccl-%d-%llx-%llu", folder, getpid(),
             (unsigned long long)now.tv_sec * 1000000000ull + now.tv_nsec,
             (unsigned long long)number++);
    return Success;
}

const char* ncclGetErrorString(int code) {
    static const char* const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return code >= 0 && code <= InProgress ? texts[code] : "unknown result code";
}

const char* ncclGetLastError(Comm* comm) {
    static thread_local std::string text;
    text = comm && !comm->last.empty() ? comm->last : last_error;
    return text.c_str();
}

int ncclCommInitRankConfig(Comm** made, int ranks, Id id, int rank, Config* config) {
    if (!config || config->magic != 0xcafebeef || config->blocking != 0)
        return fail(nullptr, InvalidArgument, "not the config of a communicator that never blocks");
    int code = arrive(made, ranks, id, rank);
    return code == Success ? InProgress : code;
}

int ncclCommFinalize(Comm* comm) {
    return comm && !comm->aborted ? Success : fail(comm, InvalidArgument, "no communicator");
}
int ncclCommDestroy(Comm* comm) { return leave(comm, false); }
int ncclCommAbort(Comm* comm) { return leave(comm, true); }

int ncclCommGetAsyncError(Comm* comm, int* state) {
    if (!comm) return fail(nullptr, InvalidArgument, "no communicator");
    // A non-blocking group answers "in progress" once, so that callers prove that they wait.
    *state = comm->group_in_progress.exchange(0) ? (int)InProgress : state_of(comm);
    return Success;
}

int ncclGroupStart() { return group_depth++, Success; }

int ncclGroupEnd() {
    if (group_depth == 0) return fail(nullptr, InvalidUsage, "ncclGroupEnd without ncclGroupStart");
    return --group_depth ? (int)Success : end_group();
}

int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
    return list(comm, stream, message(from, nullptr, count, type, peer), "ncclSend");
}

int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, void* stream) {
    Op op = message(nullptr, to, count, type, peer);
    op.receives = true;
    return list(comm, stream, op, "ncclRecv");
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, Comm* comm,
                  void* stream) {
    return list(comm, stream, collective(AllReduce, from, to, count, type, op, 0), "ncclAllReduce");
}

int ncclReduce(const void* from, void* to, size_t count, int type, int op, int root, Comm* comm,
               void* stream) {
    return list(comm, stream, collective(Reduce, from, to, count, type, op, root), "ncclReduce");
}

int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
    return list(comm, stream, collective(AllGather, from, to, count, type, 0, 0), "ncclAllGather");
}

int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm* comm,
                  void* stream) {
    return list(comm, stream, collective(Broadcast, from, to, count, type, 0, root),
                "ncclBroadcast");
}

}  // extern "C"
#pragma GCC visibility pop
