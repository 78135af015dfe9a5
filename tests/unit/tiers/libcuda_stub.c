/* A CUDA driver that knows no device: every call says "not initialised" (3), so that
 * kvikio takes all memory for host memory. For a subprocess without torch's CUDA. */
#define NOT_INITIALISED 3
#define CALL(name) int cu##name(void) { return NOT_INITIALISED; }

int cuDriverGetVersion(int *version) { *version = 12000; return 0; }

CALL(CtxCreate_v4) CALL(CtxDestroy_v2) CALL(CtxGetCurrent) CALL(CtxGetDevice)
CALL(CtxPopCurrent_v2) CALL(CtxPushCurrent_v2) CALL(DeviceGet)
CALL(DeviceGetAttribute) CALL(DeviceGetCount) CALL(DevicePrimaryCtxRelease_v2)
CALL(DevicePrimaryCtxRetain) CALL(EventCreate) CALL(EventDestroy_v2)
CALL(EventQuery) CALL(EventRecord) CALL(EventSynchronize) CALL(GetErrorName)
CALL(GetErrorString) CALL(LaunchHostFunc) CALL(MemFreeHost)
CALL(MemGetAddressRange_v2) CALL(MemHostAlloc) CALL(MemHostRegister_v2)
CALL(MemHostUnregister) CALL(MemcpyAsync) CALL(MemcpyDtoHAsync_v2)
CALL(MemcpyHtoDAsync_v2) CALL(PointerGetAttribute) CALL(PointerGetAttributes)
CALL(StreamCreate) CALL(StreamDestroy_v2) CALL(StreamSynchronize)
