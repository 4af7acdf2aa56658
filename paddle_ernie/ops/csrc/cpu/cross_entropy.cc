#include "cross_entropy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "isa.h"
#include "parallel.h"
#include "workspace.h"

#define PE_KERNEL_FILE "cross_entropy_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kRowGrain = 4;  // rows of logits per piece of a parallel loop

enum class Pass { kForward, kBackward, kBoth };

float inverse_temperature(const float* temperatures, int64_t token) {
  return temperatures ? 1.0f / temperatures[token] : 1.0f;
}

float logprob(const RowStatistics& row, float logit, float inverse_temperature) {
  return (logit - row.peak) * inverse_temperature - row.log_sum;
}

// One walk over the tokens with a target, chunk by chunk: gather, logits, rows, products.
struct Walk {
  const Head& head;
  const Targets& targets;
  const TokenResults& results;
  const TokenGradients* upstream;
  HeadGradients gradients;
  Workspace logits{}, hidden{}, packed_hidden{}, dhidden{};

  void run(Pass pass) {
    std::vector<int64_t> tokens;  // in order
    for (int64_t t = 0; t < head.T; ++t) {
      if (targets.labels[t] != kNoTarget) tokens.push_back(t);
    }
    clear(pass, tokens.empty());
    const int64_t count = static_cast<int64_t>(tokens.size());
    for (int64_t start = 0; start < count; start += head.chunk) {
      chunk(pass, tokens.data() + start, std::min(head.chunk, count - start), start > 0);
    }
  }

  // What no token with a target writes.
  void clear(Pass pass, bool no_targets) {
    for (int64_t t = 0; t < head.T; ++t) {
      if (targets.labels[t] != kNoTarget) continue;
      if (pass != Pass::kBackward) {
        results.logprobs[t] = results.entropies[t] = 0.0f;
        results.rows[t] = {};
      }
      if (gradients.dhidden) std::memset(gradients.dhidden + t * head.D, 0, head.D * sizeof(float));
    }
    if (gradients.dweight && no_targets) {
      std::memset(gradients.dweight, 0, head.V * head.D * sizeof(float));
    }
  }

  void chunk(Pass pass, const int64_t* tokens, int64_t C, bool accumulate) {
    float* hidden_CD = hidden.get<float>(C * head.D);
    float* logits_CV = logits.get<float>(C * head.V);
    for (int64_t c = 0; c < C; ++c) {
      std::memcpy(hidden_CD + c * head.D, head.hidden + tokens[c] * head.D,
                  head.D * sizeof(float));
    }
    gemm(head.forward, hidden_CD, head.D, false, head.packed_logits, C, head.V, head.D, false,
         logits_CV, head.V, false);
    rows(pass, tokens, C, logits_CV);
    if (gradients.dhidden) multiply_dhidden(tokens, C, logits_CV);
    if (gradients.dweight) multiply_dweight(C, logits_CV, hidden_CD, accumulate);
  }

  // Statistics of each row; then, if wanted, gradients in place of the logits.
  void rows(Pass pass, const int64_t* tokens, int64_t C, float* logits_CV) {
    const CrossEntropyKernels& kernels = PE_KERNELS(cross_entropy_kernels);
    parallel_for(C, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t t = tokens[c], label = targets.labels[t];
        const float scale = inverse_temperature(targets.temperatures, t);
        float* z = logits_CV + c * head.V;
        RowStatistics& row = results.rows[t];
        if (pass != Pass::kBackward) {
          row = kernels.statistics(z, head.V, scale);
          results.logprobs[t] = logprob(row, z[label], scale);
          results.entropies[t] = row.entropy;
        }
        if (!gradients.dhidden && !gradients.dweight) continue;
        kernels.gradient(z, head.V, scale, row, label, upstream->dlogprobs[t],
                         upstream->dentropies ? upstream->dentropies[t] : 0.0f);
      }
    });
  }

  void multiply_dhidden(const int64_t* tokens, int64_t C, const float* dlogits_CV) {
    float* dhidden_CD = dhidden.get<float>(C * head.D);
    gemm(head.dgrad, dlogits_CV, head.V, false, head.packed_dhidden, C, head.D, head.V, false,
         dhidden_CD, head.D, false);
    for (int64_t c = 0; c < C; ++c) {
      std::memcpy(gradients.dhidden + tokens[c] * head.D, dhidden_CD + c * head.D,
                  head.D * sizeof(float));
    }
  }

  void multiply_dweight(int64_t C, const float* dlogits_CV, const float* hidden_CD,
                        bool accumulate) {
    void* packed = packed_hidden.get<unsigned char>(packed_bytes(head.wgrad, C, head.D));
    pack_b(head.wgrad, hidden_CD, C, head.D, head.D, false, false, packed);
    gemm(head.wgrad, dlogits_CV, head.V, true, packed, head.V, head.D, C, false, gradients.dweight,
         head.D, accumulate);
  }
};

}  // namespace

void head_forward(const Head& head, const Targets& targets, const TokenResults& results) {
  Walk{head, targets, results, nullptr, {}}.run(Pass::kForward);
}

void head_backward(const Head& head, const Targets& targets, const TokenResults& results,
                   const TokenGradients& upstream, const HeadGradients& gradients) {
  Walk{head, targets, results, &upstream, gradients}.run(Pass::kBackward);
}

void head_forward_backward(const Head& head, const Targets& targets, const TokenResults& results,
                           const TokenGradients& upstream, const HeadGradients& gradients) {
  Walk{head, targets, results, &upstream, gradients}.run(Pass::kBoth);
}

void logits_logprobs(const float* logits, int64_t N, int64_t V, const Targets& targets,
                     float* logprobs, float* entropies) {
  const CrossEntropyKernels& kernels = PE_KERNELS(cross_entropy_kernels);
  parallel_for(N, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t label = targets.labels[n];
      logprobs[n] = entropies[n] = 0.0f;
      if (label == kNoTarget) continue;
      const float scale = inverse_temperature(targets.temperatures, n);
      const RowStatistics row = kernels.statistics(logits + n * V, V, scale);
      logprobs[n] = logprob(row, logits[n * V + label], scale);
      entropies[n] = row.entropy;
    }
  });
}

void log_softmax(const float* logits, int64_t N, int64_t V, const float* temperatures, float* out) {
  const CrossEntropyKernels& kernels = PE_KERNELS(cross_entropy_kernels);
  parallel_for(N, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float scale = inverse_temperature(temperatures, n);
      const RowStatistics row = kernels.statistics(logits + n * V, V, scale);
      kernels.log_softmax(logits + n * V, V, scale, row, out + n * V);
    }
  });
}

}  // namespace paddle_ernie
