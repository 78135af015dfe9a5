#include "simd_avx2.h"
#include "unit.h"

const Kernels kAvx2Kernels = kKernels;
