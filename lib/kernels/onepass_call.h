// The arguments of a call of onepass.cpp.
#pragma once
#include <cstdint>

struct Call {  // strides in numbers: batch, head, token; all numbers of a token are adjacent
  const void *query, *key, *value;
  const uint8_t* mask;    // [1 or batch, nodes, tree_keys]
  const int64_t* prefix;  // [batch]
  void* output;           // [batch, kv_heads * group, nodes, value_dim], contiguous
  float* lse;             // [batch, kv_heads * group, nodes]
  int64_t batch, kv_heads, group, nodes, tree_keys, dim, value_dim, mask_stride, threads;
  int64_t query_stride[3], key_stride[3], value_stride[3];
  float scale, softcap;  // softcap: 0 for none
};
