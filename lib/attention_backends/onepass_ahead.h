// Memory that onepass.cpp will need soon, asked for early.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

// Rows of bytes in memory, `stride` bytes apart.
struct Region { const char* start; int64_t row, stride, rows; };

// Asks for the lines of the next tile's keys, then values, a few at every call: many at once would keep other reads
// waiting. Addresses past a tensor's end do no harm.
class Ahead {
 public:
  Ahead(Region keys, Region values, int64_t calls) : now(joined(keys)), then(joined(values)), at(now.start) {
    const int64_t lines = now.rows * ((now.row + LINE - 1) / LINE) + then.rows * ((then.row + LINE - 1) / LINE);
    each = (lines + calls - 1) / calls;
  }
  inline void operator()() {
    for (int64_t i = 0; i < each; ++i) {
      _mm_prefetch(at, _MM_HINT_T1);
      at += LINE;
      if (__builtin_expect(at >= now.start + now.row, 0)) turn_to_next();
    }
  }

 private:
  static constexpr int64_t LINE = 64;
  Region now, then;
  const char* at;
  int64_t each;  // lines a call; always the same number, which the processor predicts

  static Region joined(Region x) { return x.row == x.stride ? Region{x.start, x.row * x.rows, 0, 1} : x; }
  void turn_to_next() {
    now.start += now.stride;
    if (--now.rows == 0) now = then, then.rows = 0;
    if (now.rows == 0) each = 0;
    at = now.start;
  }
};

}  // namespace
