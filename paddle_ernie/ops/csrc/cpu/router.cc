#include "router.h"

#include "isa.h"
#include "parallel.h"
#include "workspace.h"

#define PE_KERNEL_FILE "router_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kGrain = 128;  // tokens; a multiple of every vector width

float* scratch(int64_t count) {
  thread_local Workspace workspace;
  return workspace.get<float>(count);
}

bool is_record(const int32_t* ids, int64_t K, int64_t E) {
  const bool missing = ids[0] == -1;
  for (int64_t k = 0; k < K; ++k) {
    if (missing ? ids[k] != -1 : ids[k] < 0 || ids[k] >= E) return false;
    for (int64_t j = 0; j < k && !missing; ++j) {
      if (ids[j] == ids[k]) return false;
    }
  }
  return true;
}

}  // namespace

int64_t route(const Routing& routing) {
  for (int64_t t = 0; routing.replay && t < routing.T; ++t) {
    if (!is_record(routing.replay + t * routing.K, routing.K, routing.E)) return t;
  }
  const RouterKernels& kernels = PE_KERNELS(router_kernels);
  const int64_t floats = kernels.scratch_floats(routing.E, routing.K);
  parallel_for(routing.T, kGrain, [&](int64_t begin, int64_t end) {
    kernels.forward(routing, scratch(floats), begin, end);
  });
  return -1;
}

void route_gradient(const RoutingGradient& gradient) {
  const RouterKernels& kernels = PE_KERNELS(router_kernels);
  parallel_for(gradient.T, kGrain, [&](int64_t begin, int64_t end) {
    kernels.backward(gradient, scratch(2 * gradient.K), begin, end);
  });
}

}  // namespace paddle_ernie
