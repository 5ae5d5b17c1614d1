// What code on matrix units names, for instruction sets without them: nothing here is ever called.
#pragma once
#include "lanes.h"

namespace {

constexpr bool MATRIX = false;
constexpr int64_t BLOCK = 32, SIDE = 16;
constexpr int PARTS = 3;
template <class T> constexpr int PARTS_OF = 1;
constexpr int64_t whole_blocks(int64_t count) { return count; }

struct Tiles {
  explicit Tiles(int64_t = 0) {}
};
struct Left { const bf16* at; int64_t apart, part; };

bool matrix_units();
int64_t packed_size(int64_t rows, int64_t in);
void pack_rows(const float* x, int64_t rows, int64_t in, float* packed);
Words interleaved(Words both);
void turn_block(const bf16* from, int64_t apart, int64_t dim, bf16* turned);
template <class T, int R> void score_by_tiles(Left, int64_t, const float*, int64_t, float*);
template <class T, int A, int R> void add_by_tiles(const bf16*, int64_t, int64_t, const float*, float*, int64_t);

}  // namespace
