// Vectors of sixteen elements. Lane l of a pair's vectors holds 8l to 8l+3 and 8l+4 to
// 8l+7: the order in which unpack and pack work inside 128-bit lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int W = 16;
using F = __m512;
using I = __m512i;
using Words = __m512i;
using Table = __m512;

inline F splat(float x) { return _mm512_set1_ps(x); }
inline I as_i(F x) { return _mm512_castps_si512(x); }
inline F as_f(I x) { return _mm512_castsi512_ps(x); }
inline I splat_i(int32_t x) { return _mm512_set1_epi32(x); }
inline I shift_down(I x, int n) { return _mm512_srli_epi32(x, n); }
inline I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
inline I mul_i(I a, I b) { return _mm512_mullo_epi32(a, b); }
inline I quad_index(int vector) {
  const I first =
      _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  return add_i(first, splat_i(32 * (vector / 2) + 4 * (vector % 2)));
}

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline void load_pair(const float* p, F& a, F& b) {
  const F first = load(p), second = load(p + 16);
  a = _mm512_shuffle_f32x4(first, second, 0x88);
  b = _mm512_shuffle_f32x4(first, second, 0xdd);
}
inline void store_pair(float* p, F a, F b) {
  const F first = _mm512_shuffle_f32x4(a, b, 0x44);
  const F second = _mm512_shuffle_f32x4(a, b, 0xee);
  store(p, _mm512_shuffle_f32x4(first, first, 0xd8));
  store(p + 16, _mm512_shuffle_f32x4(second, second, 0xd8));
}
inline Words load_words(const void* p) { return _mm512_loadu_si512(p); }
inline void store_words(void* p, Words w) { _mm512_storeu_si512(p, w); }

inline void widen(Words w, F& a, F& b) {
  a = as_f(_mm512_unpacklo_epi16(_mm512_setzero_si512(), w));
  b = as_f(_mm512_unpackhi_epi16(_mm512_setzero_si512(), w));
}
inline void join(Words high, Words low, F& a, F& b) {
  const Words borrowed = _mm512_add_epi16(high, _mm512_srai_epi16(low, 15));
  a = as_f(_mm512_unpacklo_epi16(low, borrowed));
  b = as_f(_mm512_unpackhi_epi16(low, borrowed));
}
inline Words pack_high(I a, I b) {
  return _mm512_packus_epi32(shift_down(a, 16), shift_down(b, 16));
}
inline void split(F a, F b, Words& high, Words& low) {
  const I mask = splat_i(0xffff);
  low = _mm512_packus_epi32(_mm512_and_si512(as_i(a), mask),
                            _mm512_and_si512(as_i(b), mask));
  const Words cut = pack_high(as_i(a), as_i(b));
  high = _mm512_sub_epi16(cut, _mm512_srai_epi16(low, 15));
}

inline void load_codes(const uint8_t* p, I out[4]) {
  const I order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const I codes = _mm512_permutexvar_epi64(order, load_words(p));
  for (int k = 0; k < 4; ++k) {
    // Byte 4k+j of each lane becomes element j; the other bytes become zero.
    const char b = static_cast<char>(4 * k);
    const __m128i lane =
        _mm_setr_epi8(b, -1, -1, -1, static_cast<char>(b + 1), -1, -1, -1,
                      static_cast<char>(b + 2), -1, -1, -1, static_cast<char>(b + 3),
                      -1, -1, -1);
    out[k] = _mm512_shuffle_epi8(codes, _mm512_broadcast_i32x4(lane));
  }
}
inline void store_codes(uint8_t* p, const I in[4], int bias) {
  const I order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const I words = _mm512_set1_epi16(static_cast<int16_t>(bias));
  const I low = _mm512_add_epi16(_mm512_packs_epi32(in[0], in[1]), words);
  const I high = _mm512_add_epi16(_mm512_packs_epi32(in[2], in[3]), words);
  store_words(p, _mm512_permutexvar_epi64(order, _mm512_packus_epi16(low, high)));
}

inline F to_f(I x) { return _mm512_cvtepi32_ps(x); }
inline I truncate(F x) { return _mm512_cvttps_epi32(x); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F root(F x) { return _mm512_sqrt_ps(x); }
inline F magnitude(F x) { return _mm512_abs_ps(x); }
// The larger magnitude, its sign cleared.
inline F max_magnitude(F top, F x) { return _mm512_range_ps(top, x, 0x0b); }
inline F with_sign_of(F x, F sign) {
  // x | (sign & sign bit) in one instruction.
  return as_f(_mm512_ternarylogic_epi32(as_i(x), as_i(sign), splat_i(INT32_MIN), 0xf8));
}
inline F raise_where_positive(F x, F test, F floor) {
  const __mmask16 positive =
      _mm512_cmp_ps_mask(test, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_mask_max_ps(x, positive, x, floor);
}
inline float largest(F x) { return _mm512_reduce_max_ps(x); }
// Sixteen entries hold the eight twice, so the fourth index bit does not matter.
inline Table table(const float* entry) {
  return _mm512_broadcast_f32x8(_mm256_loadu_ps(entry));
}
inline F pick(const Table& t, I index) { return _mm512_permutexvar_ps(index, t); }

}  // namespace
