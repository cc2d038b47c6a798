// sanitizers.h - what AddressSanitizer and ThreadSanitizer must be told about fibers; nothing in a
// plain build.
#pragma once
#include <cstddef>

// Neither the driver nor the emulator is compiled with -fsanitize: what they touch is not part of
// the program under test. SOFTCUDA_ASAN and SOFTCUDA_TSAN say that the process runs under one of
// them.
#ifdef SOFTCUDA_ASAN
extern "C" {
void __asan_unpoison_memory_region(void const volatile* address, size_t bytes);
void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, size_t bytes);
void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old,
                                     size_t* bytes_old);
}
#define IF_ASAN(...) __VA_ARGS__
#else
#define IF_ASAN(...)
#endif

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
void __tsan_java_init(unsigned long begin, unsigned long bytes);
void __tsan_java_alloc(unsigned long address, unsigned long bytes);
void __tsan_java_free(unsigned long address, unsigned long bytes);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}
// The range is as if never accessed, and the tokens in it as if never released. (The interface is
// meant for managed heaps.)
inline void tsan_forget(void* address, unsigned long bytes) {
  static const bool once = [] {
    __tsan_java_init(8, 0x7ffffffffff0);
    return true;
  }();
  (void)once;
  const unsigned long begin = reinterpret_cast<unsigned long>(address) & ~7ul;
  const unsigned long end = (reinterpret_cast<unsigned long>(address) + bytes + 7) & ~7ul;
  if (begin == end) return;
  __tsan_java_alloc(begin, end - begin);
  __tsan_java_free(begin, end - begin);
}
constexpr unsigned kTsanNoSync = 1;
#define IF_TSAN(...) __VA_ARGS__
#else
#define IF_TSAN(...)
#endif
