// Products of rows with weights on emulated matrix units.
#include "emulated_tiles.h"
#include "../kernels/rows.h"

// y [rows, out] = x W^T + b of paired weights, as `linear` does it where there are matrix units.
extern "C" void linear_by_tiles(const Matrix* matrix, const float* x, float* packed, float* y, int64_t rows) {
  Threads::run(2, [&] {
    const Tiles tiles(rows);
    pack_rows(x, rows, matrix->in, packed);
    product(*matrix, Rows<float>{x, rows, packed}, y, matrix->out);
  });
}
extern "C" int64_t packed_numbers(int64_t rows, int64_t in) { return packed_size(rows, in); }
