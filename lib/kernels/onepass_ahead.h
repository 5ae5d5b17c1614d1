// Prefetches of memory that onepass.cpp will read soon.
#pragma once
#include <array>
#include <cstdint>

#include "lanes.h"

namespace {

// Rows of bytes in memory, `stride` bytes apart.
struct Region { const char* start; int64_t row, stride, rows; };

// Prefetches the lines of a few regions, one region after the other, a few per call: many at once would delay other
// reads.
class Ahead {
 public:
  Ahead(const std::array<Region, 4>& regions, int64_t calls) {
    int64_t lines = 0;
    for (size_t i = regions.size(); i-- > 0;)
      if (regions[i].rows > 0) {
        left[some++] = joined(regions[i]);
        lines += regions[i].rows * ((regions[i].row + LINE - 1) / LINE);
      }
    each = (lines + calls - 1) / calls;
    turn_to_next();
  }
  inline void operator()() {
    for (int64_t i = 0; i < each; ++i) {
      prefetch<2>(at);
      at += LINE;
      if (__builtin_expect(at >= now.start + now.row, 0)) turn_to_next();
    }
  }

 private:
  static constexpr int64_t LINE = 64;
  Region now{}, left[4];
  int some = 0;  // regions left, the next one last
  const char* at = nullptr;
  int64_t each;  // lines per call; always the same number, so that the processor predicts the branch

  static Region joined(Region x) { return x.row == x.stride ? Region{x.start, x.row * x.rows, 0, 1} : x; }
  void turn_to_next() {
    now.start += now.stride;
    if (--now.rows <= 0) {
      if (some) now = left[--some];
      else each = 0;
    }
    at = now.start;
  }
};

}  // namespace
