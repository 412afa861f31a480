//! The versions of CUDA in which the driver's functions have the signature that softcuda has. A
//! function gets another signature in a later version under the same name.

use std::ops::Range;

/// After every version.
const NEVER: u32 = u32::MAX;

/// Returns the first version with softcuda's signature, and the first one with another signature.
/// `None` for a function without an entry.
pub(super) fn of(name: &str) -> Option<Range<u32>> {
    Some(match name {
        "cuCtxCreate" => 11_040..12_050,
        "cuCtxGetDevice" => 2_000..13_000,
        "cuCtxDestroy"
        | "cuCtxGetCurrent"
        | "cuCtxSetCurrent"
        | "cuLaunchKernel"
        | "cuPointerGetAttribute" => 4_000..NEVER,
        "cuDevicePrimaryCtxRetain" => 7_000..NEVER,
        "cuDevicePrimaryCtxRelease" => 11_000..NEVER,
        "cuInit" | "cuDeviceGet" | "cuDeviceGetCount" | "cuDeviceGetAttribute" => 2_000..NEVER,
        "cuDriverGetVersion" => 2_020..NEVER,
        "cuDeviceGetUuid" => 9_020..NEVER,
        "cuGetErrorString" | "cuGetErrorName" | "cuPointerSetAttribute" => 6_000..NEVER,
        "cuMemGetAddressRange" => 3_020..NEVER,
        "cuMemGetHandleForAddressRange" => 11_070..NEVER,
        "cuStreamWaitValue32" | "cuStreamWriteValue32" | "cuStreamBatchMemOp" => 8_000..NEVER,
        "cuStreamWaitValue64" | "cuStreamWriteValue64" => 9_000..NEVER,
        "cuMemAddressReserve"
        | "cuMemAddressFree"
        | "cuMemCreate"
        | "cuMemRelease"
        | "cuMemMap"
        | "cuMemUnmap"
        | "cuMemSetAccess"
        | "cuMemGetAllocationGranularity"
        | "cuMemExportToShareableHandle"
        | "cuMemImportFromShareableHandle"
        | "cuMemGetAllocationPropertiesFromHandle" => 10_020..NEVER,
        "cuMemRetainAllocationHandle" => 11_000..NEVER,
        "cuLaunchKernelEx" => 11_060..NEVER,
        _ => return None,
    })
}
