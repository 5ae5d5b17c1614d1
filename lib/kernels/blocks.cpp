// Decoder layers in one call, a static tree filled in one call by a language model or a head, and single products.
#include "fill.h"

// y [rows, out] = x W^T + b.
template <class T> static void linear(const Matrix& matrix, const T* x, T* y, int64_t rows, int64_t threads) {
  const Numbers<char> packed = numbers<char>(Rows<T>::bytes(rows, matrix.in));
  Threads::run(threads, [&] { product(matrix, Rows<T>(x, rows, matrix, packed.get()), y, matrix.out); });
}

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
extern "C" int fill_head_float32(const Forward* f, const Fusion* fusion, const Level* levels, int64_t count,
                                 int64_t size, int64_t choices, int64_t* tokens) {
  return fill_head<float>(*f, *fusion, levels, count, size, choices, tokens);
}
extern "C" int fill_head_bfloat16(const Forward* f, const Fusion* fusion, const Level* levels, int64_t count,
                                  int64_t size, int64_t choices, int64_t* tokens) {
  return fill_head<bf16>(*f, *fusion, levels, count, size, choices, tokens);
}
extern "C" void linear_float32(const Matrix* m, const float* x, float* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
extern "C" void linear_bfloat16(const Matrix* m, const bf16* x, bf16* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
// Whether products in whole numbers of rounded inputs are the fastest here.
extern "C" int rounds() { return BY_BYTES && !matrix_units(); }
