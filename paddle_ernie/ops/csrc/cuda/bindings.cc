// The CUDA kernels as Paddle operators, for a Paddle built with CUDA. Nothing builds this into the
// library yet. A custom operator of Paddle has one kernel for all devices, so these carry `_cuda`
// after the name of their CPU counterpart.
#include "kernels.cuh"
#include "paddle/extension.h"

namespace paddle_ernie {
namespace cuda {
namespace {

using Tensor = paddle::Tensor;
using Tensors = std::vector<paddle::Tensor>;
using paddle::DataType;

void check(const Tensor& tensor, DataType type, size_t rank, const char* name) {
  PD_CHECK(tensor.is_gpu() && tensor.is_contiguous(), name, " must be contiguous, on a GPU");
  PD_CHECK(tensor.dtype() == type, name, " has the wrong type");
  PD_CHECK(tensor.shape().size() == rank, name, " must have ", rank, " axes");
}

void check_scales(const Tensor& scales, int64_t count, const char* name) {
  PD_CHECK(scales.is_gpu() && scales.dtype() == DataType::FLOAT32, name, " must be float32");
  PD_CHECK(scales.numel() == count, name, " has ", scales.numel(), " values, expected ", count);
}

void check_launch(cudaError_t error) { PD_CHECK(error == cudaSuccess, cudaGetErrorString(error)); }

Tensor make(const std::vector<int64_t>& shape, DataType type, const Tensor& like) {
  return paddle::empty(shape, type, like.place());
}

const __nv_bfloat16* bf16(const Tensor& tensor) {
  return reinterpret_cast<const __nv_bfloat16*>(tensor.data<phi::dtype::bfloat16>());
}

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DataType::BFLOAT16; }

Tensors QuantiseRows(const Tensor& x, bool power_of_two) {
  check(x, is_bf16(x) ? DataType::BFLOAT16 : DataType::FLOAT32, 2, "x");
  const int64_t M = x.shape()[0], K = x.shape()[1];
  Tensor codes = make({M, K}, DataType::UINT8, x);
  Tensor scales = make({M, blocks_of(K)}, DataType::FLOAT32, x);
  const auto launch = [&](auto* from) {
    check_launch(quantise_rows(from, M, K, power_of_two, codes.data<uint8_t>(),
                               scales.data<float>(), x.stream()));
  };
  if (is_bf16(x)) launch(bf16(x)); else launch(x.data<float>());
  return {codes, scales};
}

Tensors QuantiseBlocks(const Tensor& w, bool power_of_two, bool transposed) {
  check(w, is_bf16(w) ? DataType::BFLOAT16 : DataType::FLOAT32, 3, "w");
  const int64_t E = w.shape()[0], R = w.shape()[1], C = w.shape()[2];
  const int64_t rows = transposed ? C : R, columns = transposed ? R : C;
  Tensor codes = make({E, rows, columns}, DataType::UINT8, w);
  Tensor scales = make({E, blocks_of(rows), blocks_of(columns)}, DataType::FLOAT32, w);
  const auto launch = [&](auto* from) {
    check_launch(quantise_blocks(from, E, R, C, power_of_two, transposed, codes.data<uint8_t>(),
                                 scales.data<float>(), w.stream()));
  };
  if (is_bf16(w)) launch(bf16(w)); else launch(w.data<float>());
  return {codes, scales};
}

// a [M, K] and b [N, K] with their scales -> fp32 [M, N].
Tensors Fp8Gemm(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales) {
  check(a, DataType::UINT8, 2, "a");
  check(b, DataType::UINT8, 2, "b");
  const int64_t M = a.shape()[0], K = a.shape()[1], N = b.shape()[0];
  PD_CHECK(b.shape()[1] == K && K % 16 == 0, "a has ", K, " columns (a multiple of 16), b ",
           b.shape()[1]);
  check_scales(a_scales, M * blocks_of(K), "a_scales");
  check_scales(b_scales, blocks_of(N) * blocks_of(K), "b_scales");
  Tensor c = make({M, N}, DataType::FLOAT32, a);
  check_launch(fp8_gemm(a.data<uint8_t>(), a_scales.data<float>(), b.data<uint8_t>(),
                        b_scales.data<float>(), M, N, K, c.data<float>(), a.stream()));
  return {c};
}

// a [M, K], b [E, N, K], offsets [E + 1] rising from 0 to M (on the GPU, so not checked here).
Tensors GroupedFp8(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                   const Tensor& offsets) {
  check(a, DataType::UINT8, 2, "a");
  check(b, DataType::UINT8, 3, "b");
  check(offsets, DataType::INT64, 1, "offsets");
  const int64_t M = a.shape()[0], K = a.shape()[1], E = b.shape()[0], N = b.shape()[1];
  PD_CHECK(b.shape()[2] == K && K % 16 == 0, "a has ", K, " columns (a multiple of 16), b ",
           b.shape()[2]);
  PD_CHECK(offsets.numel() == E + 1, "expected ", E + 1, " offsets, got ", offsets.numel());
  check_scales(a_scales, M * blocks_of(K), "a_scales");
  check_scales(b_scales, E * blocks_of(N) * blocks_of(K), "b_scales");
  Tensor c = make({M, N}, DataType::FLOAT32, a);
  check_launch(grouped_gemm_fp8(a.data<uint8_t>(), a_scales.data<float>(), b.data<uint8_t>(),
                                b_scales.data<float>(), offsets.data<int64_t>(), E, M, N, K,
                                c.data<float>(), a.stream()));
  return {c};
}

Tensors GroupedBf16(const Tensor& a, const Tensor& b, const Tensor& offsets) {
  check(a, DataType::BFLOAT16, 2, "a");
  check(b, DataType::BFLOAT16, 3, "b");
  check(offsets, DataType::INT64, 1, "offsets");
  const int64_t M = a.shape()[0], K = a.shape()[1], E = b.shape()[0], N = b.shape()[1];
  PD_CHECK(b.shape()[2] == K && K % 8 == 0, "a has ", K, " columns (a multiple of 8), b ",
           b.shape()[2]);
  PD_CHECK(offsets.numel() == E + 1, "expected ", E + 1, " offsets, got ", offsets.numel());
  Tensor c = make({M, N}, DataType::FLOAT32, a);
  check_launch(grouped_gemm_bf16(bf16(a), bf16(b), offsets.data<int64_t>(), E, M, N, K,
                                 c.data<float>(), a.stream()));
  return {c};
}

}  // namespace
}  // namespace cuda
}  // namespace paddle_ernie

PD_BUILD_OP(pe_quantise_rows_cuda)
    .Inputs({"x"})
    .Outputs({"codes", "scales"})
    .Attrs({"power_of_two: bool"})
    .SetKernelFn(PD_KERNEL(paddle_ernie::cuda::QuantiseRows));

PD_BUILD_OP(pe_quantise_blocks_cuda)
    .Inputs({"w"})
    .Outputs({"codes", "scales"})
    .Attrs({"power_of_two: bool", "transposed: bool"})
    .SetKernelFn(PD_KERNEL(paddle_ernie::cuda::QuantiseBlocks));

PD_BUILD_OP(pe_fp8_gemm_cuda)
    .Inputs({"a", "a_scales", "b", "b_scales"})
    .Outputs({"c"})
    .SetKernelFn(PD_KERNEL(paddle_ernie::cuda::Fp8Gemm));

PD_BUILD_OP(pe_grouped_fp8_cuda)
    .Inputs({"a", "a_scales", "b", "b_scales", "offsets"})
    .Outputs({"c"})
    .SetKernelFn(PD_KERNEL(paddle_ernie::cuda::GroupedFp8));

PD_BUILD_OP(pe_grouped_bf16_cuda)
    .Inputs({"a", "b", "offsets"})
    .Outputs({"c"})
    .SetKernelFn(PD_KERNEL(paddle_ernie::cuda::GroupedBf16));
