// cublaslt_faults.h - how cublaslt.cpp misbehaves where a test says so.
#pragma once
#include <cstdint>

namespace {

// What becomes of products that this thread enqueues: a bit for each of the proposals; or an
// epilogue, of all of them.
struct Faults {
    uint32_t refused = 0;
    uint32_t varying = 0;
    uint32_t slow = 0;
    uint32_t refused_epilogue = 0;
    uint32_t slow_epilogue = 0;
};
thread_local Faults faults;

} // namespace

#pragma GCC visibility push(default)
extern "C" void softcudaProducts(uint32_t refused, uint32_t varying, uint32_t slow,
                                 uint32_t refused_epilogue, uint32_t slow_epilogue) {
    faults = {refused, varying, slow, refused_epilogue, slow_epilogue};
}
#pragma GCC visibility pop
