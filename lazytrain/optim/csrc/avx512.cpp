#include "simd_avx512.h"
#include "unit.h"

const Kernels kAvx512Kernels = kKernels;
