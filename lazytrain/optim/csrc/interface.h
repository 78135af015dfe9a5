// The plain C interface of the kernels, and the table each instruction set fills.
// native.py mirrors lt_slice and lt_job field by field.
#pragma once

#include <cstdint>

constexpr int64_t kBlock = 4096;

struct lt_slice {
  int64_t offset;        // first element in the part's flat buffer
  int64_t numel;
  int64_t state_offset;  // first element in the fp32 moments or in the codes
  int64_t scale_offset;  // first block in the scales
  float keep;            // 1 - learning rate * weight decay
  int32_t eight_bit;
};

enum Master : int32_t { kFp32 = 0, kSplit = 1, kBf16 = 2, kStochastic = 3 };

struct lt_job {
  void* weight;
  int16_t* remainder;
  const void* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  uint8_t* exp_avg_code;
  uint8_t* exp_avg_sq_code;
  float* exp_avg_scale;
  float* exp_avg_sq_scale;
  const lt_slice* slices;
  int64_t num_slices;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float eps, step_size, root_bias_correction2, scale;
  uint32_t key;
  int32_t master;
  int32_t gradient_is_fp32;
  int32_t threads;
  int32_t isa;
};

// Work is handed out in runs of whole blocks of one slice.
struct Unit {
  const lt_slice* slice;
  int64_t first_block;
  int64_t num_blocks;
};

// What one instruction set offers. The units that fill it are compiled with flags the
// machine may lack, so they use no standard library: the linker could otherwise keep
// their copy of an inline function for everyone.
struct Kernels {
  void (*update)(const lt_job& job, const Unit& unit);
  double (*square_sum)(const void* gradient, bool is_fp32, int64_t first, int64_t count);
  float (*encode)(const float* values, int64_t count, bool is_signed, uint8_t* codes);
  void (*decode)(const uint8_t* codes, int64_t count, float scale, bool is_signed,
                 float* values);
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
