#include "gemm.h"

#include <cstring>
#include <vector>

#include "gemm_layout.h"
#include "parallel.h"
#include "workspace.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kPackRows = 512;           // rows of B that a thread packs at a time
constexpr int64_t kTasksPerThread = 4;       // evens out what a slow thread leaves behind
constexpr int64_t kFewestPanels = 4;         // per task, so that rounding A pays off
constexpr int64_t kSerialWork = 1 << 18;     // multiplications that take less than starting threads

struct Problem {
  const float* a;
  int64_t lda;
  bool transposed;
  const uint8_t* packed;
  int64_t M, K;
  float* c;
};

// A block of one problem's C.
struct Task {
  const Problem* problem;
  int64_t row, rows, panel, panels;
};

void run(const Engine& engine, Format format, bool power_of_two_scales, const Task& task,
         int64_t N, int64_t ldc, bool accumulate) {
  const Problem& problem = *task.problem;
  const Layout layout(engine, problem.K, N);
  static thread_local Workspace block_space, scale_space;
  const int64_t room = engine.block_rows + kPadding;
  float* block = block_space.get<float>(room * (engine.k_block + kPadding));
  float* scales = scale_space.get<float>(room * engine.k_block / kScaleBlock);
  for (int64_t k = 0; k < problem.K; k += engine.k_block) {
    const int64_t K = std::min(engine.k_block, problem.K - k);
    const float* a = problem.a + (problem.transposed ? k * problem.lda + task.row
                                                     : task.row * problem.lda + k);
    Product product;
    product.a = engine.pack_a({a, problem.lda, problem.transposed, task.rows, K, format,
                               power_of_two_scales}, block, scales);
    product.rows = task.rows;
    product.K = K;
    product.columns = std::min(task.panels * engine.panel, N - task.panel * engine.panel);
    set_right_side(engine, layout, format, problem.packed, task.panel, k, &product);
    product.c = problem.c + task.row * ldc + task.panel * engine.panel;
    product.ldc = ldc;
    product.accumulate = accumulate || k > 0;
    engine.multiply(product);
  }
}

// Blocks of C: whole rows of panels while there are enough of them for the threads.
std::vector<Task> tasks_of(const Engine& engine, const Problem* problems, int64_t count,
                           int64_t panels) {
  int64_t rows = 0;
  for (int64_t i = 0; i < count; ++i) rows += problems[i].M;
  const int64_t wanted = kTasksPerThread * threads();
  int64_t block_rows = engine.block_rows;
  while (block_rows >= 8 * engine.row_unit && rows < wanted * block_rows / 2) block_rows /= 2;
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i) blocks += (problems[i].M + block_rows - 1) / block_rows;
  const int64_t chunks = std::max<int64_t>(
      1, std::min((wanted + blocks - 1) / std::max<int64_t>(blocks, 1), panels / kFewestPanels));

  std::vector<Task> tasks;
  tasks.reserve(blocks * chunks);
  for (int64_t i = 0; i < count; ++i) {
    const Problem& problem = problems[i];
    const int64_t parts = (problem.M + block_rows - 1) / block_rows;
    const int64_t height = parts ? round_up((problem.M + parts - 1) / parts, engine.row_unit) : 0;
    for (int64_t row = 0; row < problem.M; row += height) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t first = panels * chunk / chunks, last = panels * (chunk + 1) / chunks;
        tasks.push_back({&problem, row, std::min(height, problem.M - row), first, last - first});
      }
    }
  }
  return tasks;
}

void run_all(const Engine& engine, Format format, bool power_of_two_scales, const Problem* problems,
             int64_t count, int64_t N, int64_t ldc, bool accumulate) {
  if (N == 0) return;
  int64_t work = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Problem& problem = problems[i];
    work += problem.M * problem.K * N;
    if (problem.K == 0 && !accumulate) {
      for (int64_t m = 0; m < problem.M; ++m) {
        std::memset(problem.c + m * ldc, 0, N * sizeof(float));
      }
    }
  }
  const std::vector<Task> tasks =
      tasks_of(engine, problems, count, (N + engine.panel - 1) / engine.panel);
  const int64_t n = static_cast<int64_t>(tasks.size());
  parallel_for(n, work < kSerialWork ? std::max<int64_t>(n, 1) : 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   run(engine, format, power_of_two_scales, tasks[i], N, ldc, accumulate);
                 }
               });
}

// A piece of B for one thread: kPackRows rows of the panels that share 128 columns.
struct PackTask {
  const PackB* job;
  int64_t k, panel;
};

void pack_all(const Engine& engine, const PackB* jobs, int64_t count) {
  const int64_t group = kScaleBlock / engine.panel;
  std::vector<PackTask> tasks;
  int64_t work = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t panels = (jobs[i].N + engine.panel - 1) / engine.panel;
    work += jobs[i].K * jobs[i].N;
    for (int64_t k = 0; k < jobs[i].K; k += kPackRows) {
      for (int64_t panel = 0; panel < panels; panel += group) tasks.push_back({&jobs[i], k, panel});
    }
  }
  const int64_t n = static_cast<int64_t>(tasks.size());
  parallel_for(n, work * 16 < kSerialWork ? std::max<int64_t>(n, 1) : 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const PackB& job = *tasks[i].job;
                   const int64_t panels = (job.N + engine.panel - 1) / engine.panel;
                   engine.pack_b(job, tasks[i].panel, std::min(tasks[i].panel + group, panels),
                                 tasks[i].k, std::min(tasks[i].k + kPackRows, job.K));
                 }
               });
}

PackB pack_job(const Engine& engine, Format format, const float* w, int64_t K, int64_t N,
               int64_t ld, bool transposed, bool power_of_two_scales, bool column_scales,
               uint8_t* packed) {
  const Header header = header_of(engine, format, K, N, false);
  const Layout layout(engine, K, N);
  float* scales = reinterpret_cast<float*>(packed + layout.scales_at());
  // Equal weights have equal packed forms, so there are no gaps with whatever was there before.
  std::memset(packed, 0, kHeaderBytes);
  std::memset(packed + layout.values_end(), 0, layout.scales_at() - layout.values_end());
  const int64_t end = layout.scales_end(format);
  std::memset(packed + end, 0, layout.bytes(format) - end);
  std::memcpy(packed, &header, sizeof(header));
  return {w, K, N, ld, transposed, format, power_of_two_scales, column_scales,
          packed + kHeaderBytes, scales};
}

}  // namespace

size_t packed_bytes(Format format, int64_t K, int64_t N, bool codes) {
  codes = codes && has_codes(format);
  return static_cast<size_t>(Layout(engine_of(format), K, N, codes).bytes(format));
}

bool packed_for(Format format, int64_t K, int64_t N, const void* packed) {
  const Header expected = header_of(engine_of(format), format, K, N, false);
  return std::memcmp(packed, &expected, sizeof(expected)) == 0;
}

void pack_b(Format format, const float* w, int64_t K, int64_t N, int64_t ld, bool transposed,
            bool power_of_two_scales, void* packed, bool column_scales) {
  const Engine& engine = engine_of(format);
  const PackB job = pack_job(engine, format, w, K, N, ld, transposed, power_of_two_scales,
                             column_scales, static_cast<uint8_t*>(packed));
  pack_all(engine, &job, 1);
}

void pack_b_stack(Format format, const float* w, int64_t count, int64_t K, int64_t N,
                  bool transposed, bool power_of_two_scales, void* packed) {
  const Engine& engine = engine_of(format);
  const int64_t slab = Layout(engine, K, N).bytes(format);
  std::vector<PackB> jobs;
  for (int64_t i = 0; i < count; ++i) {
    jobs.push_back(pack_job(engine, format, w + i * K * N, K, N, transposed ? K : N, transposed,
                            power_of_two_scales, false, static_cast<uint8_t*>(packed) + i * slab));
  }
  pack_all(engine, jobs.data(), count);
}

void pack_codes(Format format, const float* w, int64_t count, int64_t K, int64_t N,
                bool power_of_two_scales, void* packed) {
  if (!has_codes(format)) {
    return pack_b_stack(format, w, count, K, N, false, power_of_two_scales, packed);
  }
  const Engine& engine = engine_of(format);
  const Layout from(engine, K, N), to(engine, K, N, true);
  static thread_local Workspace space;
  uint8_t* values = space.get<uint8_t>(from.bytes(format));
  for (int64_t i = 0; i < count; ++i) {
    pack_b(format, w + i * K * N, K, N, N, false, power_of_two_scales, values);
    uint8_t* out = static_cast<uint8_t*>(packed) + i * to.bytes(format);
    const Header header = header_of(engine, format, K, N, true);
    std::memset(out, 0, to.bytes(format));
    std::memcpy(out, &header, sizeof(header));
    float* scales = reinterpret_cast<float*>(out + to.scales_at());
    std::memcpy(scales, values + from.scales_at(),
                from.scales_end(format) - from.scales_at());
    parallel_for(from.panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        const uint8_t* in = values + kHeaderBytes + panel * from.panel_bytes;
        const int64_t left = panel / kCodePanels * kCodePanels, among = panel - left;
        encode_panel(reinterpret_cast<const uint16_t*>(in), K, scales + panel * to.scale_stride,
                     out + kHeaderBytes + left * to.panel_bytes + among * kCodeRow);
      }
    });
  }
}

void gemm(Format format, const float* a, int64_t lda, bool transposed, const void* packed_b,
          int64_t M, int64_t N, int64_t K, bool power_of_two_scales, float* c, int64_t ldc,
          bool accumulate) {
  const Engine& engine = engine_of(format);
  const Problem problem = {a, lda, transposed, static_cast<const uint8_t*>(packed_b), M, K, c};
  run_all(engine, format, power_of_two_scales, &problem, 1, N, ldc, accumulate);
}

void grouped_gemm(Format format, const float* a, const int64_t* counts, int64_t groups,
                  const void* packed_b, int64_t N, int64_t K, bool power_of_two_scales, float* c) {
  const Engine& engine = engine_of(format);
  const int64_t slab = Layout(engine, K, N).bytes(format);
  std::vector<Problem> problems;
  for (int64_t e = 0; e < groups; ++e) {
    if (counts[e] == 0) continue;
    const uint8_t* packed = static_cast<const uint8_t*>(packed_b) + e * slab;
    problems.push_back({a, K, false, packed, counts[e], K, c});
    a += counts[e] * K;
    c += counts[e] * N;
  }
  run_all(engine, format, power_of_two_scales, problems.data(), problems.size(), N, N, false);
}

void weight_gradients(Format format, const float* x, const float* dy, const int64_t* counts,
                      int64_t groups, int64_t I, int64_t O, bool power_of_two_scales, float* dw) {
  const Engine& engine = engine_of(format);
  int64_t bytes = 0;
  for (int64_t e = 0; e < groups; ++e) bytes += Layout(engine, counts[e], O).bytes(format);
  static thread_local Workspace space;
  uint8_t* packed = space.get<uint8_t>(bytes);
  std::vector<PackB> jobs;
  std::vector<Problem> problems;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t rows = counts[e];
    jobs.push_back(
        pack_job(engine, format, dy, rows, O, O, false, power_of_two_scales, true, packed));
    problems.push_back({x, I, true, packed, I, rows, dw + e * I * O});
    packed += Layout(engine, rows, O).bytes(format);
    x += rows * I;
    dy += rows * O;
  }
  pack_all(engine, jobs.data(), groups);
  run_all(engine, format, power_of_two_scales, problems.data(), groups, O, O, false);
}

}  // namespace paddle_ernie
