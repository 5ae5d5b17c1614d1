// Products of the rows of an input: weights in panels on the matrix units where the processor has some (`tile_rows.h`),
// else in vectors (`panel_rows.h`), or of rounded rows in whole numbers (`byte_rows.h`); weights in PyTorch's layout by
// `few_rows.h`.
#pragma once
#include "panel_rows.h"
#if defined(__AVX512BF16__)
#include "tile_rows.h"
#else
#include "no_tiles.h"
#endif
#if defined(__AVX512VNNI__)
#include "byte_rows.h"
#else
#include "no_bytes.h"
#endif

namespace {

// An input of a product: x [count, in], and the same as the matrix units take it, or rounded, where they do.
template <class T> struct Rows {
  const T* x;
  int64_t count;
  Packed packed;
  Rounded<T> rounded;

  // Within a parallel region: for products with a matrix, in `memory` of bytes() bytes.
  Rows(const T* x, int64_t count, const Matrix& matrix, char* memory) : x(x), count(count) {
    if (matrix.rounded) rounded = rounded_for(matrix, x, count, memory);
    else if (by_tiles<T>(matrix, count)) packed = packed_for(matrix, x, count, memory);
  }
  static int64_t bytes(int64_t count, int64_t in) {
    return std::max(MATRIX && matrix_units() ? Packed::bytes(count, in) : 0, rounded_bytes(count, in));
  }
};

// Within a parallel region: visits this thread's share of the outputs of N matrices of one size, as `each_of_few` does.
template <class T, int N, class F>
inline void each_output(const Matrix* const (&matrices)[N], const Rows<T>& x, F visit) {
  if (x.packed.count) return each_packed<T>(matrices, x.packed, visit);
  if (x.rounded.count) return each_rounded(matrices, x.rounded, visit);
  if (!std::all_of(matrices, matrices + N, [](const Matrix* matrix) { return matrix->panels; }))
    return each_of_few(matrices, x.x, x.count, visit);
  each_panel(matrices, x.x, x.count, visit);
}

// Within a parallel region: this thread's share of to [rows, width] = x W^T + b.
template <class T, class Out> inline void product(const Matrix& matrix, const Rows<T>& x, Out* to, int64_t width) {
  each_output({&matrix}, x, [=](int64_t row, int64_t at, Mask mask, const Vec* values) {
    write(to + row * width + at, mask, values[0]);
  });
}

// The same, added to the present values.
template <class T> inline void add_product(const Matrix& matrix, const Rows<T>& x, float* to) {
  each_output({&matrix}, x, [&](int64_t row, int64_t at, Mask mask, const Vec* values) {
    float* own = to + row * matrix.out + at;
    write(own, mask, read(own, mask) + values[0]);
  });
}

}  // namespace
