// Decoding by table: AVX-512 VBMI looks up 64 bytes at once, so an fp32 value is four
// look-ups, one for each of its bytes. Takes the place of codebook.h's Decoder.
#pragma once

namespace {

struct Planes {
  uint8_t byte[4][256];
};

template <bool Signed>
constexpr Planes make_planes() {
  Planes planes = {};
  for (int code = 0; code < 256; ++code) {
    const int cell = Signed ? code - 127 : code + 1;
    const double middle = (cell < 0 ? -cell : cell) + 0.5;
    int exponent = 126;
    for (double power = 1.0; power <= middle; power *= 2) ++exponent;
    // The product is exact in fp64, so this is one rounding, as fma's.
    const double value = kLines<Signed>.decode_slope[exponent & 7] * middle +
                         kLines<Signed>.decode_offset[exponent & 7];
    const float rounded = static_cast<float>(cell < 0 ? -value : value);
    const uint32_t bits = __builtin_bit_cast(uint32_t, rounded);
    for (int k = 0; k < 4; ++k) {
      planes.byte[k][code] = static_cast<uint8_t>(bits >> (8 * k));
    }
  }
  return planes;
}

template <bool Signed>
alignas(64) constexpr Planes kPlanes = make_planes<Signed>();

template <bool Signed>
struct Decoder {
  void quad(const uint8_t* p, F out[4]) const {
    const I order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const I codes = _mm512_permutexvar_epi64(order, load_words(p));
    const __mmask64 upper = _mm512_movepi8_mask(codes);
    I plane[4];
    for (int k = 0; k < 4; ++k) {
      const uint8_t* entry = kPlanes<Signed>.byte[k];
      const I low = _mm512_permutex2var_epi8(load_words(entry), codes,
                                             load_words(entry + 64));
      const I high = _mm512_permutex2var_epi8(load_words(entry + 128), codes,
                                              load_words(entry + 192));
      plane[k] = _mm512_mask_blend_epi8(upper, low, high);
    }
    const I low01 = _mm512_unpacklo_epi8(plane[0], plane[1]);
    const I low23 = _mm512_unpacklo_epi8(plane[2], plane[3]);
    const I high01 = _mm512_unpackhi_epi8(plane[0], plane[1]);
    const I high23 = _mm512_unpackhi_epi8(plane[2], plane[3]);
    out[0] = as_f(_mm512_unpacklo_epi16(low01, low23));
    out[1] = as_f(_mm512_unpackhi_epi16(low01, low23));
    out[2] = as_f(_mm512_unpacklo_epi16(high01, high23));
    out[3] = as_f(_mm512_unpackhi_epi16(high01, high23));
  }
};

}  // namespace
