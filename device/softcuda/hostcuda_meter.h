// hostcuda_meter.h - what the compiler calls before each access under -fsanitize=thread, when the
// emulator meters memory: it counts the access (meter.h).
//
// The hooks have names of their own and the linker's names by `asm`: the compiler knows the latter
// as built-in functions of other types.
#pragma once

#define HOSTCUDA_HOOK(name) __attribute__((no_sanitize("thread"), used, noinline)) name
#define HOSTCUDA_TELL(bytes, kind)                                                             \
  hostcuda::runtime->access(__builtin_return_address(0), reinterpret_cast<unsigned long>(p), \
                            bytes, kind)

#define HOSTCUDA_HOOK_ACCESS(name, bytes, kind)                     \
  void hostcuda_##name(const volatile void* p) asm("__tsan_" #name); \
  void HOSTCUDA_HOOK(hostcuda_##name)(const volatile void* p) { HOSTCUDA_TELL(bytes, kind); }
#define HOSTCUDA_HOOK_RANGE(name, kind)                                                    \
  void hostcuda_##name(const volatile void* p, unsigned long bytes) asm("__tsan_" #name); \
  void HOSTCUDA_HOOK(hostcuda_##name)(const volatile void* p, unsigned long bytes) {       \
    HOSTCUDA_TELL(static_cast<unsigned>(bytes), kind);                                     \
  }
#define HOSTCUDA_HOOK_WIDTHS(name, kind)                                                       \
  HOSTCUDA_HOOK_ACCESS(name##1, 1, kind) HOSTCUDA_HOOK_ACCESS(name##2, 2, kind)                \
  HOSTCUDA_HOOK_ACCESS(name##4, 4, kind) HOSTCUDA_HOOK_ACCESS(name##8, 8, kind)                \
  HOSTCUDA_HOOK_ACCESS(name##16, 16, kind)
HOSTCUDA_HOOK_WIDTHS(read, kHostcudaRead)
HOSTCUDA_HOOK_WIDTHS(write, kHostcudaWrite)
HOSTCUDA_HOOK_WIDTHS(unaligned_read, kHostcudaRead)
HOSTCUDA_HOOK_WIDTHS(unaligned_write, kHostcudaWrite)
HOSTCUDA_HOOK_RANGE(read_range, kHostcudaRead)
HOSTCUDA_HOOK_RANGE(write_range, kHostcudaWrite)

// Note: atomics of hostcuda.h are a relaxed load and a comparing exchange, where a device has one
// instruction: the load is not counted.
#define HOSTCUDA_HOOK_ATOMICS(T, bits)                                                          \
  T hostcuda_load##bits(const volatile T* p, int order) asm("__tsan_atomic" #bits "_load");     \
  T HOSTCUDA_HOOK(hostcuda_load##bits)(const volatile T* p, int order) {                        \
    if (order != __ATOMIC_RELAXED) HOSTCUDA_TELL(sizeof(T), kHostcudaRead);                     \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                \
  }                                                                                             \
  void hostcuda_store##bits(volatile T* p, T v, int) asm("__tsan_atomic" #bits "_store");       \
  void HOSTCUDA_HOOK(hostcuda_store##bits)(volatile T* p, T v, int) {                           \
    HOSTCUDA_TELL(sizeof(T), kHostcudaWrite);                                                   \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                             \
  bool hostcuda_exchange##bits(volatile T* p, void* old, T v, int, int) asm(                    \
      "__tsan_atomic" #bits "_compare_exchange_strong");                                        \
  bool HOSTCUDA_HOOK(hostcuda_exchange##bits)(volatile T* p, void* old, T v, int, int) {        \
    HOSTCUDA_TELL(sizeof(T), kHostcudaAtomic);                                                  \
    return __atomic_compare_exchange_n(p, static_cast<T*>(old), v, false, __ATOMIC_SEQ_CST,     \
                                       __ATOMIC_SEQ_CST);                                       \
  }
HOSTCUDA_HOOK_ATOMICS(unsigned, 32)
HOSTCUDA_HOOK_ATOMICS(unsigned long, 64)

void hostcuda_meter_init() asm("__tsan_init");
void HOSTCUDA_HOOK(hostcuda_meter_init)() {}
void hostcuda_meter_fence(int) asm("__tsan_atomic_thread_fence");
void HOSTCUDA_HOOK(hostcuda_meter_fence)(int) {}
