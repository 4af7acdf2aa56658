// Scratch memory that is kept between calls: one growing buffer per thread and slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace paddle_ernie {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector

class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { release(); }

  // At least `count` elements; what was there before is gone if the buffer had to grow.
  template <class T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > bytes_) {
      release();
      data_ = std::aligned_alloc(kAlignment, bytes);
      if (!data_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    expose(bytes);
    return static_cast<T*>(data_);
  }

  // What the last get() returned.
  template <class T>
  T* data() const {
    return static_cast<T*>(data_);
  }

 private:
  void release() {
    expose(bytes_);
    std::free(data_);
    data_ = nullptr;
    bytes_ = 0;
  }

  // In a sanitizer build, touching more than this call asked for is an error.
  void expose(size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_POISON_MEMORY_REGION(data_, bytes_);
    ASAN_UNPOISON_MEMORY_REGION(data_, bytes);
#endif
    (void)bytes;
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace paddle_ernie
