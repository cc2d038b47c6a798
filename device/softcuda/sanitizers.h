// sanitizers.h - what AddressSanitizer and ThreadSanitizer must be told about fibers; nothing in a plain build.
#pragma once
#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define IF_ASAN(...) __VA_ARGS__
#else
#define IF_ASAN(...)
#endif

// The driver and the emulator are not compiled with -fsanitize=thread (what they touch is not part of the program under
// test): SOFTCUDA_TSAN says that the process runs under it.
#ifdef SOFTCUDA_TSAN
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
void AnnotateIgnoreSyncBegin(const char*, int);
void AnnotateIgnoreSyncEnd(const char*, int);
}
constexpr unsigned kTsanNoSync = 1;
#define IF_TSAN(...) __VA_ARGS__
#else
#define IF_TSAN(...)
#endif
