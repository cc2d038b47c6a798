// nccl_bytes.cpp - the bytes of the software NCCL: how they pass through the rings of the shared
// file, and how sums are made of them.
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "collective.h"
#include "enqueue.h"
#include "nccl_state.h"

namespace softcuda_nccl {

std::string describe(const Header& h) {
    char text[120];
    const char* name = h.kind <= Reduce ? kind_names[h.kind] : "unknown";
    snprintf(text, sizeof text, "%s of %llu elements of type %u (op %u, root %u)", name,
             (unsigned long long)h.count, h.type, h.op, h.root);
    return text;
}

int fail(Comm* comm, int code, const char* format, ...) {
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    last_error = text;
    if (comm) comm->last = text;
    return code;
}

int misuse(Comm* comm, const std::string& text) {
    int expected = 0;
    if (comm->shared->failed.compare_exchange_strong(expected, 1)) {
        snprintf(comm->shared->reason, sizeof comm->shared->reason, "%s", text.c_str());
        fprintf(stderr, "softcuda nccl: %s\n", text.c_str());
        comm->shared->failed.store(2);
    }
    comm->state = InvalidUsage;
    comm->shared->moves.fetch_add(1);
    softcudaWake();
    return LaunchFailed;
}

// --- rings ---------------------------------------------------------------------------------------
namespace {

size_t ring_write(Ring& ring, const unsigned char* from, size_t bytes) {
    uint64_t written = ring.written.load(std::memory_order_relaxed);
    size_t free = ring_bytes - (written - ring.read.load(std::memory_order_acquire));
    bytes = bytes < free ? bytes : free;
    for (size_t done = 0; done < bytes;) {
        size_t at = (written + done) % ring_bytes, part = ring_bytes - at;
        part = part < bytes - done ? part : bytes - done;
        memcpy(ring.data + at, from + done, part);
        done += part;
    }
    ring.written.store(written + bytes, std::memory_order_release);
    return bytes;
}

void ring_peek(Ring& ring, unsigned char* to, size_t bytes) {
    uint64_t read = ring.read.load(std::memory_order_relaxed);
    for (size_t done = 0; done < bytes;) {
        size_t at = (read + done) % ring_bytes, part = ring_bytes - at;
        part = part < bytes - done ? part : bytes - done;
        memcpy(to + done, ring.data + at, part);
        done += part;
    }
}

void ring_take(Ring& ring, size_t bytes) {
    ring.read.store(ring.read.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
}

}  // namespace

size_t ring_filled(Ring& ring) {
    return ring.written.load(std::memory_order_acquire) - ring.read.load(std::memory_order_relaxed);
}

Parcel parcel(const Comm& comm, const Op& op, int peer) {
    const Header& h = op.header;
    size_t bytes = h.count * type_bytes[h.type];
    Parcel p;
    switch (h.kind) {
        case Message:
            if (peer != op.peer) return p;
            if (op.receives) p.receives = true, p.to = op.to, p.receive = bytes;
            else p.sends = true, p.from = op.from, p.send = bytes;
            return p;
        case Broadcast:
            if (peer == comm.rank) return p;
            if (comm.rank == (int)h.root) p.sends = true, p.from = op.from, p.send = bytes;
            else if (peer == (int)h.root) p.receives = true, p.to = op.to, p.receive = bytes;
            return p;
        case AllGather:
            if (peer == comm.rank) return p;
            p.sends = p.receives = true;
            p.from = op.from, p.send = bytes;
            p.to = op.to + peer * bytes, p.receive = bytes;
            return p;
        default:  // a sum: what is received is added, not stored
            if (peer == comm.rank) return p;
            p.receives = is_sum(comm, op);
            p.sends = h.kind == AllReduce || peer == (int)h.root;
            p.from = op.from, p.send = p.receive = bytes;
            return p;
    }
}

bool send_some(Comm& comm, const Op& op, int peer, const Parcel& p, Progress& progress) {
    uint64_t before = progress.sent;
    Ring& ring = comm.to(peer);
    if (progress.sent < sizeof(Header)) {
        if (ring_bytes - ring_filled(ring) < sizeof(Header)) return false;
        ring_write(ring, reinterpret_cast<const unsigned char*>(&op.header), sizeof(Header));
        progress.sent = sizeof(Header);
    }
    size_t done = progress.sent - sizeof(Header);
    if (done < p.send) {
        size_t bytes = ring_write(ring, p.from + done, p.send - done);
        softcudaReads(p.from + done, bytes);
        progress.sent += bytes;
    }
    return progress.sent != before;
}

int receive_header(Comm& comm, const Op& op, int peer, Progress& progress) {
    if (progress.got >= sizeof(Header)) return 0;
    Ring& ring = comm.from(peer);
    if (ring_filled(ring) < sizeof(Header)) return 0;
    Header header;
    ring_peek(ring, reinterpret_cast<unsigned char*>(&header), sizeof header);
    if (!same(header, op.header)) {
        misuse(&comm, "rank " + std::to_string(comm.rank) + " is in " + describe(op.header) +
                          ", rank " + std::to_string(peer) + " in " + describe(header));
        return -1;
    }
    ring_take(ring, sizeof header);
    progress.got = sizeof header;
    return 1;
}

bool receive_some(Comm& comm, int peer, const Parcel& p, Progress& progress) {
    if (progress.got < sizeof(Header)) return false;
    size_t done = progress.got - sizeof(Header), filled = ring_filled(comm.from(peer));
    size_t bytes = p.receive - done < filled ? p.receive - done : filled;
    if (bytes == 0) return false;
    ring_peek(comm.from(peer), p.to + done, bytes);
    softcudaWrites(p.to + done, bytes);
    ring_take(comm.from(peer), bytes);
    progress.got += bytes;
    return true;
}

// --- sums ----------------------------------------------------------------------------------------
namespace {

// Sums of f32. The parts lie one after another, in the order of ranks.
void add_up(const unsigned char* parts, int ranks, size_t bytes, unsigned char* to) {
    for (size_t at = 0; at < bytes; at += sizeof(float)) {
        float sum = 0, element;
        for (int rank = 0; rank < ranks; rank++) {
            memcpy(&element, parts + rank * bytes + at, sizeof element);
            sum = rank == 0 ? element : sum + element;
        }
        memcpy(to + at, &sum, sizeof sum);
    }
}

}  // namespace

bool sum_some(Comm& comm, const Op& op, Progress* progress) {
    size_t bytes = op.header.count * sizeof(float);
    size_t done = progress[comm.rank].got;  // the own row counts what has been added
    size_t chunk = bytes - done < chunk_bytes ? bytes - done : chunk_bytes;
    if (chunk == 0) return false;
    for (int peer = 0; peer < comm.ranks; peer++) {
        if (peer == comm.rank) continue;
        if (progress[peer].got < sizeof(Header) || ring_filled(comm.from(peer)) < chunk)
            return false;
        bool sends = op.header.kind == AllReduce;
        if (sends && progress[peer].sent < sizeof(Header) + done + chunk) return false;
    }
    std::vector<unsigned char> parts(comm.ranks * chunk);
    for (int peer = 0; peer < comm.ranks; peer++) {
        unsigned char* part = parts.data() + peer * chunk;
        if (peer == comm.rank) {
            softcudaReads(op.from + done, chunk);
            memcpy(part, op.from + done, chunk);
        } else {
            ring_peek(comm.from(peer), part, chunk);
            ring_take(comm.from(peer), chunk);
            progress[peer].got += chunk;
        }
    }
    add_up(parts.data(), comm.ranks, chunk, op.to + done);
    softcudaWrites(op.to + done, chunk);
    progress[comm.rank].got += chunk;
    return true;
}

}  // namespace softcuda_nccl
