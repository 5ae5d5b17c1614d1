// The threads of all kernels: those of the process's OpenMP library, which PyTorch's operators use too, since its idle
// threads spin for milliseconds and would keep the cores from a second pool. Without such a library, and after a fork,
// which OpenMP's threads do not survive: a pool of this library, made at its first use.
//
// A thread that waits here spins for some microseconds, in which most waits end, and then sleeps: a thread that spins
// keeps its core from the one it waits for where another process competes for the cores.
#pragma once
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "lanes.h"

class __attribute__((visibility("hidden"))) Threads {  // of this library alone, where several are loaded
 public:
  // Runs body() on `count` threads, this one included; alone where another region is running.
  template <class F> static void run(int64_t count, F body) {
    Threads& own = pool();
    std::unique_lock<std::mutex> free(own.running, std::try_to_lock);
    if (count < 2 || !free) return body();
    own.start(std::min<int64_t>(count, MOST - 1), [](void* given) { (*static_cast<F*>(given))(); }, &body);
  }

  // This thread's number in its region.
  static int64_t index() { return own_index; }

  // Within a region: returns when all threads have called it; what they wrote before can then be read.
  static void barrier() {
    if (own_count > 1) pool().meet();
  }

  // Within a region: visit(i) for this thread's share of 0, 1, ... total - 1, neighbours, without waiting at the end.
  template <class F> static void each(int64_t total, F visit) {
    const int64_t end = total * (own_index + 1) / own_count;
    for (int64_t i = total * own_index / own_count; i < end; ++i) visit(i);
  }

 private:
  static constexpr uint32_t MOST = 512;
  static constexpr int SPINS = 1500;  // pauses before a waiting thread sleeps
  static inline thread_local int64_t own_index = 0, own_count = 1;

  // Functions of the process's OpenMP library, under names that gcc's and LLVM's both have; null where it has none.
  struct OpenMP {
    void (*parallel)(void (*body)(void*), void* given, unsigned threads, unsigned flags);
    int (*index)(), (*count)();
  };

  OpenMP openmp{};
  std::mutex running;
  int64_t made = 1;  // threads, with the one that calls
  void (*body)(void*) = nullptr;
  void* given = nullptr;
  alignas(64) std::atomic<uint32_t> region{0};  // the number of regions so far, times MOST, and the last one's threads
  alignas(64) std::atomic<uint32_t> meetings{0};  // barriers that all threads of a region reached, so far
  alignas(64) std::atomic<int64_t> present{0};    // threads at the next one

  template <class F> static bool found(const char* name, F*& function) {
    return (function = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name)));
  }

  static Threads& pool() {
    static Threads* own = [] {
      pthread_atfork(nullptr, nullptr, [] { new (&memory) Threads; });  // a child has none of its parent's threads
      Threads* made = new (&memory) Threads;
      OpenMP& openmp = made->openmp;
      if (found("omp_get_thread_num", openmp.index) && found("omp_get_num_threads", openmp.count))
        found("GOMP_parallel", openmp.parallel);
      return made;
    }();
    return *own;
  }
  alignas(64) static inline unsigned char memory[512];

  static uint32_t changed(const std::atomic<uint32_t>& number, uint32_t from) {
    for (int i = 0; i < SPINS; ++i, relax())
      if (const uint32_t now = number.load(std::memory_order_acquire); now != from) return now;
    number.wait(from, std::memory_order_acquire);
    return number.load(std::memory_order_acquire);
  }

  void start(int64_t count, void (*work)(void*), void* context) {
    body = work, given = context;
    if (openmp.parallel) return openmp.parallel([](void* all) { static_cast<Threads*>(all)->lend(); }, this, count, 0);
    try {
      for (; made < count; ++made) std::thread(&Threads::serve, this, made, region.load()).detach();
    } catch (const std::system_error&) {  // the system gives no more threads
      count = made;
    }
    region.store((region.load() / MOST + 1) * MOST + count, std::memory_order_release);
    region.notify_all();
    act(0, count);
  }

  void lend() noexcept {
    own_index = openmp.index(), own_count = openmp.count();
    body(given);
    own_index = 0, own_count = 1;
  }

  void act(int64_t index, int64_t count) noexcept {
    own_index = index, own_count = count;
    body(given);
    meet();
    own_index = 0, own_count = 1;
  }

  void serve(int64_t index, uint32_t seen) {
    for (;;) {
      seen = changed(region, seen);
      if (index < seen % MOST) act(index, seen % MOST);
    }
  }

  void meet() {
    const uint32_t before = meetings.load(std::memory_order_relaxed);
    if (present.fetch_add(1, std::memory_order_acq_rel) + 1 < own_count) return void(changed(meetings, before));
    present.store(0, std::memory_order_relaxed);
    meetings.store(before + 1, std::memory_order_release);
    meetings.notify_all();
  }
};
