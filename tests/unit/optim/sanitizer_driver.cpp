// Runs every kernel at every edge size on buffers of exact size, so that a sanitizer
// sees each byte read or written too much; also compares the instruction sets.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "interface.h"

extern "C" {
int32_t lt_best_isa();
void lt_adamw(const lt_job* job);
void lt_square_sums(const void* gradient, int32_t is_fp32, const lt_slice* slices,
                    int64_t num_slices, int32_t threads, int32_t isa, float* sums);
void lt_encode(const float* values, int64_t count, int32_t is_signed, int32_t isa,
               uint8_t* codes, float* scale);
void lt_decode(const uint8_t* codes, int64_t count, float scale, int32_t is_signed,
               int32_t isa, float* values);
}

namespace {

const int64_t kSizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 12345};

uint32_t noise(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

float small(uint32_t& state) {
  return (static_cast<float>(noise(state)) / (1 << 23) - 1.0f) * 0.02f;
}

// A buffer of exactly `bytes` on the heap, filled with small fp32 or bf16 numbers.
std::vector<uint8_t> numbers(int64_t count, bool is_fp32, uint32_t seed) {
  std::vector<uint8_t> out(static_cast<size_t>(count) * (is_fp32 ? 4 : 2));
  for (int64_t i = 0; i < count; ++i) {
    const float value = small(seed);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t high = static_cast<uint16_t>(bits >> 16);
    uint8_t* to = out.data() + i * (is_fp32 ? 4 : 2);
    if (is_fp32) std::memcpy(to, &value, 4);
    else std::memcpy(to, &high, 2);
  }
  return out;
}

struct Result {
  std::vector<uint8_t> weight;
  std::vector<int16_t> remainder;
  std::vector<float> moments1, moments2, scales1, scales2;
  std::vector<uint8_t> codes1, codes2;

  bool operator==(const Result& o) const {
    return weight == o.weight && remainder == o.remainder && moments1 == o.moments1 &&
           moments2 == o.moments2 && scales1 == o.scales1 && scales2 == o.scales2 &&
           codes1 == o.codes1 && codes2 == o.codes2;
  }
};

Result run(int64_t n, int32_t master, bool fp32_gradient, bool eight_bit, int32_t isa) {
  const size_t size = static_cast<size_t>(n);
  const size_t blocks = static_cast<size_t>((n + kBlock - 1) / kBlock);
  Result r;
  r.weight = numbers(n, master == kFp32, 1);
  if (master == kSplit) r.remainder.assign(size, 0);
  r.moments1.assign(eight_bit ? 0 : size, 0.0f);
  r.moments2.assign(eight_bit ? 0 : size, 0.0f);
  r.codes1.assign(eight_bit ? size : 0, 0);
  r.codes2.assign(eight_bit ? size : 0, 0);
  r.scales1.assign(eight_bit ? blocks : 0, 0.0f);
  r.scales2.assign(eight_bit ? blocks : 0, 0.0f);
  const lt_slice slice = {0, n, 0, 0, 0.999f, eight_bit};
  for (uint32_t step = 1; step <= 3; ++step) {
    const std::vector<uint8_t> gradient = numbers(n, fp32_gradient, step);
    lt_job job = {};
    job.weight = r.weight.data();
    job.remainder = r.remainder.data();
    job.gradient = gradient.data();
    job.exp_avg = r.moments1.data();
    job.exp_avg_sq = r.moments2.data();
    job.exp_avg_code = r.codes1.data();
    job.exp_avg_sq_code = r.codes2.data();
    job.exp_avg_scale = r.scales1.data();
    job.exp_avg_sq_scale = r.scales2.data();
    job.slices = &slice;
    job.num_slices = 1;
    job.beta1 = 0.9f, job.one_minus_beta1 = 0.1f;
    job.beta2 = 0.999f, job.one_minus_beta2 = 0.001f;
    job.eps = 1e-8f, job.step_size = 1e-3f, job.root_bias_correction2 = 0.5f;
    job.scale = 0.7f, job.key = step;
    job.master = master, job.gradient_is_fp32 = fp32_gradient;
    job.threads = 2, job.isa = isa;
    lt_adamw(&job);
  }
  return r;
}

void fail(const char* what, int64_t n, int32_t isa) {
  std::fprintf(stderr, "%s differs at size %ld, instruction set %d\n", what,
               static_cast<long>(n), isa);
  std::exit(1);
}

void check_updates(int64_t n, int32_t best) {
  for (int32_t master = kFp32; master <= kStochastic; ++master) {
    for (int variant = 0; variant < 4; ++variant) {
      const Result first = run(n, master, variant & 1, variant & 2, 0);
      for (int32_t isa = 1; isa <= best; ++isa) {
        if (!(run(n, master, variant & 1, variant & 2, isa) == first)) {
          fail("update", n, isa);
        }
      }
    }
  }
}

void check_sums_and_codes(int64_t n, int32_t isa) {
  const lt_slice slice = {0, n, 0, 0, 1.0f, 0};
  for (const bool is_fp32 : {false, true}) {
    const std::vector<uint8_t> gradient = numbers(n, is_fp32, 5);
    float sum = -1.0f, expected = -1.0f;
    lt_square_sums(gradient.data(), is_fp32, &slice, 1, 2, isa, &sum);
    lt_square_sums(gradient.data(), is_fp32, &slice, 1, 1, 0, &expected);
    if (sum != expected) fail("square sum", n, isa);
  }
  if (n > kBlock) return;
  const std::unique_ptr<float[]> values(new float[static_cast<size_t>(n)]);
  const std::unique_ptr<uint8_t[]> codes(new uint8_t[static_cast<size_t>(n)]);
  for (int32_t is_signed = 0; is_signed <= 1; ++is_signed) {
    uint32_t seed = 9;
    for (int64_t i = 0; i < n; ++i) {
      values[i] = is_signed ? small(seed) : small(seed) * small(seed) + 1e-9f;
    }
    float scale = 0.0f;
    lt_encode(values.get(), n, is_signed, isa, codes.get(), &scale);
    lt_decode(codes.get(), n, scale, is_signed, isa, values.get());
  }
}

}  // namespace

int main() {
  const int32_t best = lt_best_isa();
  for (const int64_t n : kSizes) {
    check_updates(n, best);
    for (int32_t isa = 0; isa <= best; ++isa) check_sums_and_codes(n, isa);
  }
  std::printf("ok, instruction sets 0 to %d\n", best);
  return 0;
}
