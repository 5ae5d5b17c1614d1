// Tree attention on emulated matrix units, however few the rows.
#include "emulated_tiles.h"
#include "../kernels/onepass.cpp"

extern "C" int tiled_float32(const Call* call) { return run<float, 1, true>(*call), 1; }
extern "C" int tiled_bfloat16(const Call* call) { return run<bf16, 1, true>(*call), 1; }
