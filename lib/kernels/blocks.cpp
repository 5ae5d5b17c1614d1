// Decoder layers in one call, a static tree filled in one call, and single products (called by
// lib/models/native_blocks.py and products.py).
#include "fill.h"

namespace {

template <class T> void linear(const Matrix& matrix, const T* x, T* to, int64_t rows, int64_t threads) {
  const bool tiled = by_tiles<T>(matrix);
  Numbers<float> packed{nullptr, &std::free};
  if constexpr (MATRIX)
    if (tiled) packed = numbers<float>(packed_size(rows, matrix.in));
  Threads::run(threads, [&] {
    const Tiles tiles(tiled ? rows : 0);
    if constexpr (MATRIX && sizeof(T) == 4)
      if (tiled) pack_rows(x, rows, matrix.in, packed.get());
    product(matrix, Rows<T>{x, rows, packed.get()}, to, matrix.out);
  });
}

}  // namespace

extern "C" int forward_float32(const Forward* forward) { return Run<float>(*forward).all(); }
extern "C" int forward_bfloat16(const Forward* forward) { return Run<bf16>(*forward).all(); }
extern "C" int fill_float32(const Forward* f, const Level* levels, int64_t count, int64_t size, int64_t choices,
                            int64_t* tokens) {
  return fill<float>(*f, levels, count, size, choices, tokens);
}
extern "C" int fill_bfloat16(const Forward* f, const Level* levels, int64_t count, int64_t size, int64_t choices,
                             int64_t* tokens) {
  return fill<bf16>(*f, levels, count, size, choices, tokens);
}
extern "C" void linear_float32(const Matrix* m, const float* x, float* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
extern "C" void linear_bfloat16(const Matrix* m, const bf16* x, bf16* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
