// A fake CUDA driver: it initializes, and loads every kernel without reading it, so that cuDNN makes its
// plans on a machine without a GPU. All other calls fail as in the toolkit's own stub.
namespace {

enum Result { success = 0, stub_library = 34 };
char something;

}  // namespace

#define REFUSES(name) \
  extern "C" Result name() { return stub_library; }

extern "C" {

Result cuInit(unsigned) { return success; }
Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return success;
}
Result cuLibraryLoadData(void** made, ...) {
  *made = &something;
  return success;
}
Result cuLibraryUnload(void*) { return success; }
Result cuLibraryGetKernel(void** made, ...) {
  *made = &something;
  return success;
}
Result cuKernelGetFunction(void** made, ...) {
  *made = &something;
  return success;
}
Result cuKernelGetAttribute(int* value, ...) {
  *value = 0;
  return success;
}
Result cuKernelSetAttribute(int, ...) { return success; }
Result cuFuncGetAttribute(int* value, ...) {
  *value = 0;
  return success;
}
Result cuFuncSetAttribute(void*, ...) { return success; }

}  // extern "C"

REFUSES(cuGetExportTable)
REFUSES(cuGetErrorName)
REFUSES(cuGetErrorString)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuStreamGetCtx)
REFUSES(cuLinkCreate)
REFUSES(cuLinkAddData)
REFUSES(cuLinkComplete)
REFUSES(cuLinkDestroy)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuDeviceGetCount)
REFUSES(cuDeviceGet)
REFUSES(cuLibraryLoadFromFile)
REFUSES(cuOccupancyMaxPotentialClusterSize)
REFUSES(cuModuleLoadData)
REFUSES(cuModuleLoadDataEx)
REFUSES(cuModuleLoadFatBinary)
REFUSES(cuModuleGetFunction)
REFUSES(cuModuleUnload)
REFUSES(cuTensorMapEncodeIm2col)
REFUSES(cuTensorMapEncodeTiled)
REFUSES(cuLinkCreate_v2)
REFUSES(cuLinkAddData_v2)
REFUSES(cuLinkAddFile_v2)
REFUSES(cuCtxGetDevice)
REFUSES(cuDevicePrimaryCtxRetain)
