// Paddle tensors in, plain pointers out. Only bind_*.inc files see Paddle's headers.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/extension.h"

namespace paddle_ernie {

using Tensor = paddle::Tensor;
using Tensors = std::vector<paddle::Tensor>;
using Shape = std::vector<int64_t>;

inline Tensor make(const Shape& shape, paddle::DataType type) {
  return paddle::empty(shape, type, paddle::CPUPlace());
}
inline Tensor floats(const Shape& shape) { return make(shape, paddle::DataType::FLOAT32); }
inline Tensor bytes(const Shape& shape) { return make(shape, paddle::DataType::UINT8); }

// Operators check what would read or write out of bounds; Python's dispatch checks the rest.
inline void check_floats(const Tensor& tensor, const char* name) {
  PD_CHECK(tensor.is_cpu() && tensor.dtype() == paddle::DataType::FLOAT32, name,
           " must be a float32 tensor in CPU memory");
  PD_CHECK(tensor.is_contiguous(), name, " must be contiguous");
}

}  // namespace paddle_ernie
