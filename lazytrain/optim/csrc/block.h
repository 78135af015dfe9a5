// AdamW on one block of at most 4096 elements: one pass over memory. Included once by
// each instruction set after its simd_*.h; all sizes here are multiples of 64.
#pragma once

#include "codebook.h"
#include "interface.h"

namespace {

constexpr int64_t kStride = 64;

// Where a block's data lie; `index` is its first element's place in the part.
struct Block {
  void* weight;
  int16_t* remainder;
  const void* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  uint8_t* exp_avg_code;
  uint8_t* exp_avg_sq_code;
  float* exp_avg_scale;
  float* exp_avg_sq_scale;
  int64_t count;
  uint32_t index;
  float keep;
  bool has_next;  // another block follows at once in memory
};

template <bool Fp32>
inline F load_gradient(const void* p, int64_t i) {
  if constexpr (Fp32) return load(static_cast<const float*>(p) + i);
  return as_f(shift_up(load_u16(static_cast<const uint16_t*>(p) + i)));
}

template <int32_t M>
inline F load_master(const Block& b, int64_t i) {
  if constexpr (M == kFp32) return load(static_cast<const float*>(b.weight) + i);
  const I high = shift_up(load_u16(static_cast<const uint16_t*>(b.weight) + i));
  if constexpr (M != kSplit) return as_f(high);
  return as_f(add_i(high, load_i16(b.remainder + i)));
}

// Sixteen random bits per element from its place and the step's key (masters.py).
inline I random_bits(uint32_t first, uint32_t key) {
  I x = add_i(splat_i(static_cast<int32_t>(first)), lane_index());
  x = add_i(mul_i(x, splat_i(static_cast<int32_t>(0x9e3779b1u))),
            splat_i(static_cast<int32_t>(key)));
  x = mul_i(x ^ shift_down(x, 16), splat_i(static_cast<int32_t>(0x85ebca6bu)));
  x = mul_i(x ^ shift_down(x, 13), splat_i(static_cast<int32_t>(0xc2b2ae35u)));
  x = x ^ shift_down(x, 16);
  return sub_i(x, shift_up(shift_down(x, 16)));
}

template <int32_t M>
inline void store_master(const Block& b, int64_t i, F master, uint32_t key) {
  if constexpr (M == kFp32) {
    store(static_cast<float*>(b.weight) + i, master);
    return;
  }
  uint16_t* weight = static_cast<uint16_t*>(b.weight) + i;
  const I bits = as_i(master);
  if constexpr (M == kSplit) {
    store_16(weight, shift_down(add_i(bits, splat_i(0x8000)), 16));
    store_16(b.remainder + i, bits);
  } else if constexpr (M == kBf16) {
    const I odd = sub_i(shift_down(bits, 16),
                        add_i(shift_down(bits, 17), shift_down(bits, 17)));
    store_16(weight, shift_down(add_i(add_i(bits, odd), splat_i(0x7fff)), 16));
  } else {
    const I random = random_bits(b.index + static_cast<uint32_t>(i), key);
    store_16(weight, shift_down(add_i(bits, random), 16));
  }
}

// The arithmetic of torch.optim.AdamW, operation by operation.
template <bool Fp32, int32_t M>
void update_fp32_state(const lt_job& job, const Block& b) {
  const F beta2 = splat(job.beta2), eps = splat(job.eps), scale = splat(job.scale);
  const F gain1 = splat(job.one_minus_beta1), gain2 = splat(job.one_minus_beta2);
  const F step = splat(-job.step_size), keep = splat(b.keep);
  const F correction = splat(job.root_bias_correction2);
  for (int64_t i = 0; i < b.count; i += W) {
    const F g = load_gradient<Fp32>(b.gradient, i) * scale;
    const F m0 = load(b.exp_avg + i);
    const F m = fma(gain1, g - m0, m0);
    const F v = fma(gain2 * g, g, load(b.exp_avg_sq + i) * beta2);
    store(b.exp_avg + i, m);
    store(b.exp_avg_sq + i, v);
    const F denominator = root(v) / correction + eps;
    const F p = load_master<M>(b, i) * keep + step * m / denominator;
    store_master<M>(b, i, p, job.key);
  }
}

// Asks for 64 elements of the next block, so that memory works while codes are made.
template <bool Fp32, int32_t M>
inline void fetch_weights(const Block& b, int64_t i) {
  const auto fetch = [&](const void* base, int64_t size) {
    for (int64_t line = 0; line < size; ++line) {
      const int64_t bytes = size * (kBlock + i) + 64 * line;
      __builtin_prefetch(static_cast<const char*>(base) + bytes, 0, 2);
    }
  };
  fetch(b.gradient, Fp32 ? 4 : 2);
  fetch(b.weight, M == kFp32 ? 4 : 2);
  if (M == kSplit) fetch(b.remainder, 2);
}

inline void fetch_codes(const Block& b, int64_t i) {
  __builtin_prefetch(b.exp_avg_code + kBlock + i, 0, 2);
  __builtin_prefetch(b.exp_avg_sq_code + kBlock + i, 0, 2);
}

// Encodes a block and returns its scale; `beside` runs once for every 64 elements.
template <bool Signed, typename Beside>
inline float store_codes(const float* values, F tops, int64_t count, uint8_t* codes,
                         const Beside& beside) {
  const float scale = usable_scale(largest(tops));
  const F inverse = splat(inverse_of(scale));
  for (int64_t i = 0; i < count; i += kStride) {
    beside(i);
    for (int64_t j = i; j < i + kStride; j += W) {
      store_8(codes + j, encode_one<Signed>(load(values + j) * inverse));
    }
  }
  return scale;
}

// Moments wait in cache until the block's maxima are known; then they are encoded.
template <bool Fp32, int32_t M>
void update_eight_bit(const lt_job& job, const Block& b) {
  alignas(64) float first[kBlock], second[kBlock];
  const Decoder<true> decode1;
  const Decoder<false> decode2;
  const F decay1 = splat(job.beta1 * *b.exp_avg_scale);
  const F decay2 = splat(job.beta2 * *b.exp_avg_sq_scale);
  const F gain1 = splat(job.one_minus_beta1), gain2 = splat(job.one_minus_beta2);
  const F eps = splat(job.eps), scale = splat(job.scale), keep = splat(b.keep);
  const F step = splat(-job.step_size);
  const F correction = splat(1.0f / job.root_bias_correction2);
  F top1 = splat(0.0f), top2 = splat(0.0f);
  for (int64_t i = 0; i < b.count; i += W) {
    const F g = load_gradient<Fp32>(b.gradient, i) * scale;
    const F m = fma(decode1(load_u8(b.exp_avg_code + i)), decay1, gain1 * g);
    const F v = fma(decode2(load_u8(b.exp_avg_sq_code + i)), decay2, gain2 * g * g);
    top1 = max(top1, magnitude(m));
    top2 = max(top2, v);
    store(first + i, m);
    store(second + i, v);
    const F denominator = fma(root(v), correction, eps);
    const F p = fma(load_master<M>(b, i), keep, step * m / denominator);
    store_master<M>(b, i, p, job.key);
  }
  const bool more = b.has_next;
  *b.exp_avg_scale =
      store_codes<true>(first, top1, b.count, b.exp_avg_code, [&](int64_t i) {
        if (more) fetch_weights<Fp32, M>(b, i);
      });
  *b.exp_avg_sq_scale =
      store_codes<false>(second, top2, b.count, b.exp_avg_sq_code, [&](int64_t i) {
        if (more) fetch_codes(b, i);
      });
}

}  // namespace
