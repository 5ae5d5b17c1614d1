// The matrix units' instructions in plain C++, so that products by tiles are tested where there are no such units.
#pragma once
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

struct Tile {
  uint8_t bytes[16][64];
};
thread_local Tile tiles[8];
thread_local uint8_t shape[64];

inline int rows(int tile) { return shape[48 + tile]; }
inline int width(int tile) { return shape[16 + 2 * tile]; }
inline void configure(const void* from) { std::memcpy(shape, from, 64), std::memset(tiles, 0, sizeof tiles); }
inline void release() { std::memset(shape, 0, 64); }
inline void zero(int tile) { std::memset(&tiles[tile], 0, sizeof(Tile)); }
inline void load(int tile, const void* from, int64_t stride) {
  zero(tile);
  for (int row = 0; row < rows(tile); ++row)
    std::memcpy(tiles[tile].bytes[row], static_cast<const char*>(from) + row * stride, width(tile));
}
inline void store(int tile, void* to, int64_t stride) {
  for (int row = 0; row < rows(tile); ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile].bytes[row], width(tile));
}
inline float number(const Tile& tile, int row, int at) {  // bfloat16
  uint16_t half;
  std::memcpy(&half, tile.bytes[row] + 2 * at, 2);
  const uint32_t bits = uint32_t(half) << 16;
  float whole;
  std::memcpy(&whole, &bits, 4);
  return whole;
}
inline void multiply(int sum, int left, int right) {  // TDPBF16PS, an element of the sum at a time
  for (int row = 0; row < rows(sum); ++row)
    for (int lane = 0; lane < width(sum) / 4; ++lane) {
      float own;
      std::memcpy(&own, tiles[sum].bytes[row] + 4 * lane, 4);
      for (int pair = 0; pair < width(left) / 4; ++pair)
        for (int half = 0; half < 2; ++half)
          own = std::fma(number(tiles[left], row, 2 * pair + half), number(tiles[right], pair, 2 * lane + half), own);
      std::memcpy(tiles[sum].bytes[row] + 4 * lane, &own, 4);
    }
}

inline void multiply_bytes(int sum, int left, int right) {  // TDPBSSD
  for (int row = 0; row < rows(sum); ++row)
    for (int lane = 0; lane < width(sum) / 4; ++lane) {
      int32_t own;
      std::memcpy(&own, tiles[sum].bytes[row] + 4 * lane, 4);
      for (int at = 0; at < width(left); ++at)
        own += int8_t(tiles[left].bytes[row][at]) * int8_t(tiles[right].bytes[at / 4][4 * lane + at % 4]);
      std::memcpy(tiles[sum].bytes[row] + 4 * lane, &own, 4);
    }
}

}  // namespace emulated

#define __get_cpuid_count(leaf, part, a, b, c, d) (*(d) = ~0u, true)
#define syscall(...) 0L
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig emulated::configure
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::multiply
#define _tile_dpbssd emulated::multiply_bytes
