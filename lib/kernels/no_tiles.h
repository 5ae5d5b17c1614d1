// What code on matrix units names, for instruction sets without them: nothing here is ever called.
#pragma once
#include "lanes.h"

namespace {

constexpr bool MATRIX = false;
constexpr int64_t BLOCK = 32, SIDE = 16;
constexpr int PARTS = 3;
template <class T> constexpr int PARTS_OF = 1;
constexpr int64_t whole_blocks(int64_t count) { return count; }
inline bool matrix_units() { return false; }

struct Tiles {};
struct Left { const bf16* at; int64_t apart, part; };
struct Matrix;
struct Packed {
  int64_t count = 0;
  static int64_t bytes(int64_t, int64_t) { return 0; }
};

template <class T> bool by_tiles(const Matrix&, int64_t) { return false; }
template <class T> Packed packed_for(const Matrix&, const T*, int64_t, char*) { return {}; }
template <class T, class M, class F> void each_packed(const M&, const Packed&, F) {}
Words interleaved(Words both);
void turn_block(const bf16* from, int64_t apart, int64_t dim, bf16* turned);
template <class T, int R> void score_by_tiles(Left, int64_t, const float*, int64_t, float*);
template <class T, int A, int R> void add_by_tiles(const bf16*, int64_t, int64_t, const float*, float*, int64_t);

}  // namespace
