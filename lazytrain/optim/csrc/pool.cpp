#include "pool.h"

#include <unistd.h>

#include <cstdint>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

class Pool {
 public:
  void run(int threads, void (*work)(void*), void* context) {
    const std::lock_guard<std::mutex> one_job(job_);
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      for (; workers_ < threads - 1; ++workers_) {
        std::thread(&Pool::serve, this, workers_, generation_).detach();
      }
      work_ = work;
      context_ = context;
      wanted_ = running_ = threads - 1;
      ++generation_;
    }
    wake_.notify_all();
    work(context);
    std::unique_lock<std::mutex> guard(mutex_);
    done_.wait(guard, [this] { return running_ == 0; });
  }

 private:
  void serve(int number, uint64_t seen) {
    std::unique_lock<std::mutex> guard(mutex_);
    for (;;) {
      wake_.wait(guard, [&] { return generation_ != seen; });
      seen = generation_;
      if (number >= wanted_) continue;
      guard.unlock();
      work_(context_);
      guard.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex job_, mutex_;
  std::condition_variable wake_, done_;
  void (*work_)(void*) = nullptr;
  void* context_ = nullptr;
  uint64_t generation_ = 0;
  int workers_ = 0, wanted_ = 0, running_ = 0;
};

// Never destroyed: sleeping workers may outlive static destructors. A forked child has
// no workers and perhaps a locked mutex, so it starts a pool of its own.
Pool& pool() {
  static std::mutex mutex;
  static Pool* current = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> guard(mutex);
  if (owner != getpid()) {
    current = new Pool;
    owner = getpid();
  }
  return *current;
}

}  // namespace

void run_parallel(int threads, void (*work)(void*), void* context) {
  if (threads <= 1) {
    work(context);
  } else {
    pool().run(threads, work, context);
  }
}
