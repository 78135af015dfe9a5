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
inline void load_gradient(const void* p, int64_t i, F out[4]) {
  for (int k = 0; k < 4; k += 2, i += 2 * W) {
    if constexpr (Fp32) {
      load_pair(static_cast<const float*>(p) + i, out[k], out[k + 1]);
    } else {
      widen(load_words(static_cast<const uint16_t*>(p) + i), out[k], out[k + 1]);
    }
  }
}

template <int32_t M>
inline void load_master(const Block& b, int64_t i, F out[4]) {
  for (int k = 0; k < 4; k += 2, i += 2 * W) {
    if constexpr (M == kFp32) {
      load_pair(static_cast<const float*>(b.weight) + i, out[k], out[k + 1]);
      continue;
    }
    const Words high = load_words(static_cast<const uint16_t*>(b.weight) + i);
    if constexpr (M == kSplit) {
      join(high, load_words(b.remainder + i), out[k], out[k + 1]);
    } else {
      widen(high, out[k], out[k + 1]);
    }
  }
}

// Sixteen random bits per element from its place and the step's key (masters.py).
inline I random_bits(uint32_t first, int vector, uint32_t key) {
  I x = add_i(splat_i(static_cast<int32_t>(first)), quad_index(vector));
  x = add_i(mul_i(x, splat_i(static_cast<int32_t>(0x9e3779b1u))),
            splat_i(static_cast<int32_t>(key)));
  x = mul_i(x ^ shift_down(x, 16), splat_i(static_cast<int32_t>(0x85ebca6bu)));
  x = mul_i(x ^ shift_down(x, 13), splat_i(static_cast<int32_t>(0xc2b2ae35u)));
  return (x ^ shift_down(x, 16)) & splat_i(0xffff);
}

// What is added to an fp32's bits before the low half is cut off.
template <int32_t M>
inline I rounding(I bits, const Block& b, int64_t i, int vector, uint32_t key) {
  if constexpr (M == kBf16) {
    return add_i(shift_down(bits, 16) & splat_i(1), splat_i(0x7fff));
  }
  return random_bits(b.index + static_cast<uint32_t>(i), vector, key);
}

template <int32_t M>
inline void store_master(const Block& b, int64_t i, const F in[4], uint32_t key) {
  for (int k = 0; k < 4; k += 2) {
    const int64_t place = i + k * W;
    if constexpr (M == kFp32) {
      store_pair(static_cast<float*>(b.weight) + place, in[k], in[k + 1]);
      continue;
    }
    uint16_t* weight = static_cast<uint16_t*>(b.weight) + place;
    if constexpr (M == kSplit) {
      Words high, low;
      split(in[k], in[k + 1], high, low);
      store_words(weight, high);
      store_words(b.remainder + place, low);
    } else {
      const I first = as_i(in[k]), second = as_i(in[k + 1]);
      store_words(weight, pack_high(add_i(first, rounding<M>(first, b, i, k, key)),
                                    add_i(second, rounding<M>(second, b, i, k + 1, key))));
    }
  }
}

inline void load_quad(const float* p, F out[4]) {
  load_pair(p, out[0], out[1]);
  load_pair(p + 2 * W, out[2], out[3]);
}

inline void store_quad(float* p, const F in[4]) {
  store_pair(p, in[0], in[1]);
  store_pair(p + 2 * W, in[2], in[3]);
}

// The arithmetic of torch.optim.AdamW, operation by operation.
template <bool Fp32, int32_t M>
void update_fp32_state(const lt_job& job, const Block& b) {
  const F beta2 = splat(job.beta2), eps = splat(job.eps), scale = splat(job.scale);
  const F gain1 = splat(job.one_minus_beta1), gain2 = splat(job.one_minus_beta2);
  const F step = splat(-job.step_size), keep = splat(b.keep);
  const F correction = splat(job.root_bias_correction2);
  for (int64_t i = 0; i < b.count; i += 4 * W) {
    F g[4], p[4], m[4], v[4];
    load_gradient<Fp32>(b.gradient, i, g);
    load_master<M>(b, i, p);
    load_quad(b.exp_avg + i, m);
    load_quad(b.exp_avg_sq + i, v);
    for (int k = 0; k < 4; ++k) {
      const F scaled = g[k] * scale;
      m[k] = fma(gain1, scaled - m[k], m[k]);
      v[k] = fma(gain2 * scaled, scaled, v[k] * beta2);
      p[k] = p[k] * keep + step * m[k] / (root(v[k]) / correction + eps);
    }
    store_quad(b.exp_avg + i, m);
    store_quad(b.exp_avg_sq + i, v);
    store_master<M>(b, i, p, job.key);
  }
}

inline void fetch(const void* base, int64_t size, int64_t i) {
  for (int64_t line = 0; line < size; ++line) {
    const int64_t bytes = size * (kBlock + i) + 64 * line;
    __builtin_prefetch(static_cast<const char*>(base) + bytes, 0, 2);
  }
}

// Each asks for 64 elements of the next block while codes are made, so that memory never
// rests; two halves of like size, since a core has few lines in flight.
template <bool Fp32, int32_t M>
inline void fetch_first_half(const Block& b, int64_t i) {
  fetch(b.gradient, Fp32 ? 4 : 2, i);
  fetch(b.weight, M == kFp32 ? 4 : 2, i);
}

template <int32_t M>
inline void fetch_second_half(const Block& b, int64_t i) {
  if constexpr (M == kSplit) fetch(b.remainder, 2, i);
  fetch(b.exp_avg_code, 1, i);
  fetch(b.exp_avg_sq_code, 1, i);
}

// Encodes a block and returns its scale; `beside` runs once for every 64 elements.
template <bool Signed, typename Beside>
inline float encode_block(const float* values, F tops, int64_t count, uint8_t* codes,
                          const Beside& beside) {
  const float scale = usable_scale(largest(tops));
  const Encoder<Signed> encode(scale);
  for (int64_t i = 0; i < count; i += kStride) {
    beside(i);
    for (int64_t j = i; j < i + kStride; j += 4 * W) {
      I cells[4];
      for (int k = 0; k < 4; ++k) cells[k] = encode(load(values + j + k * W));
      store_codes(codes + j, cells, kBias<Signed>);
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
  const F gain1 = splat(job.one_minus_beta1 * job.scale);
  const F gain2 = splat(__builtin_sqrtf(job.one_minus_beta2) * job.scale);
  const F eps = splat(job.eps), keep = splat(b.keep), step = splat(-job.step_size);
  const F correction = splat(1.0f / job.root_bias_correction2);
  F top1 = splat(0.0f), top2 = splat(0.0f);
  for (int64_t i = 0; i < b.count; i += 4 * W) {
    F g[4], p[4], m0[4], v0[4];
    load_gradient<Fp32>(b.gradient, i, g);
    load_master<M>(b, i, p);
    decode1.quad(b.exp_avg_code + i, m0);
    decode2.quad(b.exp_avg_sq_code + i, v0);
    for (int k = 0; k < 4; ++k) {
      const F grown = g[k] * gain2;
      const F m = fma(m0[k], decay1, g[k] * gain1);
      const F v = fma(grown, grown, v0[k] * decay2);
      top1 = max_magnitude(top1, m);
      top2 = max(top2, v);
      store(first + i + k * W, m);
      store(second + i + k * W, v);
      p[k] = fma(p[k], keep, step * m / fma(root(v), correction, eps));
    }
    store_master<M>(b, i, p, job.key);
  }
  const bool more = b.has_next;
  *b.exp_avg_scale =
      encode_block<true>(first, top1, b.count, b.exp_avg_code, [&](int64_t i) {
        if (more) fetch_first_half<Fp32, M>(b, i);
      });
  *b.exp_avg_sq_scale =
      encode_block<false>(second, top2, b.count, b.exp_avg_sq_code, [&](int64_t i) {
        if (more) fetch_second_half<M>(b, i);
      });
}

}  // namespace
