// Products of the rows of an input, on the matrix units where weights and processor allow it, else by `few_rows.h`.
#pragma once
#include "tile_rows.h"

namespace {

// An input of a product: x [count, in], and the same packed for the matrix units, or null.
template <class T> struct Rows {
  const T* x;
  int64_t count;
  const float* packed;
};

// Whether a matrix's products run on the matrix units here.
template <class T> inline bool by_tiles(const Matrix& matrix) {
  if constexpr (sizeof(T) == 4) return matrix.halved && matrix_units();
  return false;
}

// Within a parallel region: this thread's share of to [rows, width] = x W^T + b.
template <class T, class Out> inline void product(const Matrix& matrix, Rows<T> x, Out* to, int64_t width) {
  if constexpr (sizeof(T) == 4)
    if (x.packed && matrix.halved)
      return each_tile({&matrix}, x.packed, x.count, [=](int64_t row, int64_t at, __mmask16 mask, const __m512* sums) {
        write(to + row * width + at, mask, sums[0]);
      });
  few_product(matrix, x.x, x.count, to, width);
}

// The same, added to what is there.
template <class T> inline void add_product(const Matrix& matrix, Rows<T> x, float* to) {
  if constexpr (sizeof(T) == 4)
    if (x.packed && matrix.halved)
      return each_tile({&matrix}, x.packed, x.count, [&](int64_t row, int64_t at, __mmask16 mask, const __m512* sums) {
        float* own = to + row * matrix.out + at;
        write(own, mask, _mm512_add_ps(read(own, mask), sums[0]));
      });
  add_few_product(matrix, x.x, x.count, to);
}

}  // namespace
