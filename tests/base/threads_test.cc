// The pool: every task once, any number of callers, fork, and idle threads that sleep.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "base/parallel.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::testing {
namespace {

void expect_each_task_once(ThreadPool& pool, std::int64_t n) {
  std::vector<std::atomic<int>> counts(static_cast<std::size_t>(n));
  const Runner runner = pool.runner();
  runner.run(
      runner.ctx, n,
      [](void* arg, std::int64_t i) {
        ++(*static_cast<std::vector<std::atomic<int>>*>(arg))[static_cast<std::size_t>(i)];
      },
      &counts);
  for (const auto& count : counts) ASSERT_EQ(count, 1);
}

TEST(ThreadPool, runs_every_task_once) {
  for (const int threads : {1, 2, 3, 16}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t n : {0, 1, 2, 7, 1000}) {
      for (int repeat = 0; repeat < 200; ++repeat) expect_each_task_once(pool, n);
    }
  }
}

TEST(ThreadPool, serves_several_callers_at_once) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&pool] {
      for (int k = 0; k < 200; ++k) expect_each_task_once(pool, 50);
    });
  }
  for (auto& caller : callers) caller.join();
}

TEST(ThreadPool, a_task_may_use_the_pool_itself) {
  ThreadPool pool(2);
  std::atomic<int> inner{0};
  parallel_for(pool.runner(), 4, [&](std::int64_t) { parallel_for(pool.runner(), 8, [&](std::int64_t) { ++inner; }); });
  EXPECT_EQ(inner, 32);
}

TEST(ThreadPool, survives_fork) {
  ThreadPool pool(2);
  expect_each_task_once(pool, 100);
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> done{0};
    parallel_for(pool.runner(), 100, [&](std::int64_t) { ++done; });
    _exit(done == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  expect_each_task_once(pool, 100);
}

TEST(ThreadPool, idle_workers_sleep) {
  ThreadPool pool(4);
  expect_each_task_once(pool, 100);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used =
      static_cast<double>(after.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 0.15) << "seconds of CPU in 0.3 s of idleness of four threads";
}

TEST(ThreadPool, reads_swiglu_threads) {
  setenv("SWIGLU_THREADS", "3", 1);
  EXPECT_EQ(ThreadPool().threads(), 3);
  for (const char* bad : {"0", "-1", "two", "3x", "99999999999"}) {
    setenv("SWIGLU_THREADS", bad, 1);
    EXPECT_THROW(ThreadPool(), Error) << bad;
  }
  unsetenv("SWIGLU_THREADS");
  EXPECT_EQ(ThreadPool().threads(), usable_cpus());
  EXPECT_THROW(ThreadPool(-1), Error);
}

TEST(ParallelFor, rethrows_the_first_exception) {
  ThreadPool pool(2);
  EXPECT_THROW(parallel_for(pool.runner(), 100,
                            [](std::int64_t i) {
                              if (i == 37) throw Error(ErrorCode::io, "task 37");
                            }),
               Error);
}

}  // namespace
}  // namespace swiglu::testing
