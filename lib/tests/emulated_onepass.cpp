// Tree attention on emulated matrix units, however few the rows.
#include "emulated_tiles.h"
#include "../attention_backends/onepass.cpp"

extern "C" void tiled_float32(const Call* call) { run<float, 1, true>(*call); }
extern "C" void tiled_bfloat16(const Call* call) { run<bf16, 1, true>(*call); }
