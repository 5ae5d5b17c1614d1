// Products of rows with weights on emulated matrix units.
#include "emulated_tiles.h"
#include "../kernels/fill_head.h"

// y [rows, out] = x W^T + b of weights in panels, as where there are matrix units.
extern "C" void linear_float32(const Matrix* matrix, const float* x, float* y, int64_t rows, int64_t threads) {
  linear(*matrix, x, y, rows, threads);
}
extern "C" void linear_bfloat16(const Matrix* matrix, const bf16* x, bf16* y, int64_t rows, int64_t threads) {
  linear(*matrix, x, y, rows, threads);
}
