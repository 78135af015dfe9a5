// Walks a unit's blocks, pads the last one of a slice, and fills the kernel table.
#pragma once

#include <cstddef>

#include "block.h"

namespace {

using Update = void (*)(const lt_job&, const Block&);

template <bool Fp32, int32_t M>
Update choose_state(bool eight_bit) {
  return eight_bit ? update_eight_bit<Fp32, M> : update_fp32_state<Fp32, M>;
}

template <bool Fp32>
Update choose_master(int32_t master, bool eight_bit) {
  switch (master) {
    case kFp32: return choose_state<Fp32, kFp32>(eight_bit);
    case kSplit: return choose_state<Fp32, kSplit>(eight_bit);
    case kBf16: return choose_state<Fp32, kBf16>(eight_bit);
    default: return choose_state<Fp32, kStochastic>(eight_bit);
  }
}

Block block_at(const lt_job& job, const lt_slice& slice, int64_t block) {
  const int64_t start = block * kBlock;
  const int64_t place = slice.offset + start, state = slice.state_offset + start;
  const int64_t weight_bytes = job.master == kFp32 ? 4 : 2;
  const int64_t gradient_bytes = job.gradient_is_fp32 ? 4 : 2;
  Block b = {};
  b.weight = static_cast<char*>(job.weight) + weight_bytes * place;
  if (job.master == kSplit) b.remainder = job.remainder + place;
  b.gradient = static_cast<const char*>(job.gradient) + gradient_bytes * place;
  if (slice.eight_bit) {
    b.exp_avg_code = job.exp_avg_code + state;
    b.exp_avg_sq_code = job.exp_avg_sq_code + state;
    b.exp_avg_scale = job.exp_avg_scale + slice.scale_offset + block;
    b.exp_avg_sq_scale = job.exp_avg_sq_scale + slice.scale_offset + block;
  } else {
    b.exp_avg = job.exp_avg + state;
    b.exp_avg_sq = job.exp_avg_sq + state;
  }
  b.count = slice.numel - start < kBlock ? slice.numel - start : kBlock;
  b.index = static_cast<uint32_t>(place);
  b.keep = slice.keep;
  return b;
}

template <typename T>
void copy(T* to, const T* from, int64_t bytes) {
  if (bytes > 0) __builtin_memcpy(to, from, static_cast<size_t>(bytes));
}

// Runs a block whose size is no multiple of 64 on padded copies. The padding is a zero
// weight with zero gradient and zero moments, which stays zero and raises no maximum.
void update_padded(const lt_job& job, const Block& b, Update update) {
  alignas(64) char weight[4 * kBlock] = {}, gradient[4 * kBlock] = {};
  alignas(64) int16_t remainder[kBlock] = {};
  alignas(64) float first[kBlock] = {}, second[kBlock] = {};
  alignas(64) uint8_t code1[kBlock], code2[kBlock] = {};
  __builtin_memset(code1, 127, sizeof(code1));
  const int64_t n = b.count;
  const int64_t weight_bytes = (job.master == kFp32 ? 4 : 2) * n;
  copy(weight, static_cast<const char*>(b.weight), weight_bytes);
  copy(gradient, static_cast<const char*>(b.gradient),
       (job.gradient_is_fp32 ? 4 : 2) * n);
  if (b.remainder) copy(remainder, b.remainder, 2 * n);
  if (b.exp_avg) copy(first, b.exp_avg, 4 * n), copy(second, b.exp_avg_sq, 4 * n);
  if (b.exp_avg_code) copy(code1, b.exp_avg_code, n), copy(code2, b.exp_avg_sq_code, n);
  Block padded = b;
  padded.weight = weight;
  padded.gradient = gradient;
  padded.remainder = remainder;
  padded.exp_avg = first;
  padded.exp_avg_sq = second;
  padded.exp_avg_code = code1;
  padded.exp_avg_sq_code = code2;
  padded.count = (n + kStride - 1) / kStride * kStride;
  padded.has_next = false;
  update(job, padded);
  copy(static_cast<char*>(b.weight), weight, weight_bytes);
  if (b.remainder) copy(b.remainder, remainder, 2 * n);
  if (b.exp_avg) copy(b.exp_avg, first, 4 * n), copy(b.exp_avg_sq, second, 4 * n);
  if (b.exp_avg_code) copy(b.exp_avg_code, code1, n), copy(b.exp_avg_sq_code, code2, n);
}

void update_unit(const lt_job& job, const Unit& unit) {
  const bool eight_bit = unit.slice->eight_bit != 0;
  const Update update = job.gradient_is_fp32 ? choose_master<true>(job.master, eight_bit)
                                             : choose_master<false>(job.master, eight_bit);
  for (int64_t i = 0; i < unit.num_blocks; ++i) {
    Block b = block_at(job, *unit.slice, unit.first_block + i);
    b.has_next = i + 1 < unit.num_blocks;
    if (b.count % kStride == 0) {
      update(job, b);
    } else {
      update_padded(job, b, update);
    }
  }
}

// Squares are summed in fp32 over a block, in 32 partial sums by place modulo 32
// whatever W is, and the sums added in fp64: every instruction set adds alike.
template <bool Fp32>
double square_sum_of(const void* gradient, int64_t first, int64_t count) {
  const char* base = static_cast<const char*>(gradient) + (Fp32 ? 4 : 2) * first;
  double total = 0.0;
  for (int64_t i = 0; i < count; i += kBlock) {
    alignas(64) char tail[4 * kBlock];
    const int64_t n = count - i < kBlock ? count - i : kBlock;
    const void* from = base + (Fp32 ? 4 : 2) * i;
    if (n % kStride) {
      __builtin_memset(tail, 0, sizeof(tail));
      copy(tail, static_cast<const char*>(from), (Fp32 ? 4 : 2) * n);
      from = tail;
    }
    F sums[32 / W];
    for (F& sum : sums) sum = splat(0.0f);
    for (int64_t j = 0; j < n; j += kStride) {
      for (int q = 0; q < kStride / W; q += 4) {
        F g[4];
        load_gradient<Fp32>(from, j + q * W, g);
        for (int k = 0; k < 4; ++k) {
          F& sum = sums[(q + k) % (32 / W)];
          sum = fma(g[k], g[k], sum);
        }
      }
    }
    alignas(64) float lanes[32];
    for (int k = 0; k < 32 / W; k += 2) store_pair(lanes + k * W, sums[k], sums[k + 1]);
    for (float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

double square_sum(const void* gradient, bool is_fp32, int64_t first, int64_t count) {
  return is_fp32 ? square_sum_of<true>(gradient, first, count)
                 : square_sum_of<false>(gradient, first, count);
}

// For tests: one block of values to codes. Quads are written in the order in which
// encode_block reads its moments, that of the codes.
float encode_values(const float* values, int64_t count, bool is_signed,
                    uint8_t* codes) {
  alignas(64) float natural[kBlock] = {}, ordered[kBlock];
  alignas(64) uint8_t out[kBlock];
  copy(natural, values, 4 * count);
  F tops = splat(0.0f);
  for (int64_t i = 0; i < kBlock; i += 4 * W) {
    F quad[4];
    load_quad(natural + i, quad);
    for (int k = 0; k < 4; ++k) {
      tops = max_magnitude(tops, quad[k]);
      store(ordered + i + k * W, quad[k]);
    }
  }
  const auto nothing = [](int64_t) {};
  const float scale = is_signed
                          ? encode_block<true>(ordered, tops, kBlock, out, nothing)
                          : encode_block<false>(ordered, tops, kBlock, out, nothing);
  copy(codes, out, count);
  return scale;
}

void decode_values(const uint8_t* codes, int64_t count, float scale, bool is_signed,
                   float* values) {
  alignas(64) uint8_t padded[kBlock] = {};
  alignas(64) float out[kBlock];
  copy(padded, codes, count);
  const Decoder<true> decode1;
  const Decoder<false> decode2;
  for (int64_t i = 0; i < kBlock; i += 4 * W) {
    F quad[4];
    is_signed ? decode1.quad(padded + i, quad) : decode2.quad(padded + i, quad);
    for (F& value : quad) value = value * splat(scale);
    store_quad(out + i, quad);
  }
  copy(values, out, 4 * count);
}

constexpr Kernels kKernels = {update_unit, square_sum, encode_values, decode_values};

}  // namespace
