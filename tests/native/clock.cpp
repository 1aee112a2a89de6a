// What a C++ program makes of the time of day, chosen by the first argument.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <future>
#include <mutex>
#include <random>

using namespace std::chrono;

// A generator seeded from the clock, as many examples have it.
static void seed() {
    std::mt19937_64 generator(system_clock::now().time_since_epoch().count());
    std::printf("%llx\n", static_cast<unsigned long long>(generator()));
}

// Whether what waits for 50 ms from now does so: by a condition variable, and by a future (a futex).
static void wait() {
    std::mutex mutex;
    std::condition_variable condition;
    std::promise<int> promise;
    auto future = promise.get_future();
    std::unique_lock<std::mutex> lock(mutex);
    auto before = steady_clock::now();
    while (condition.wait_until(lock, system_clock::now() + milliseconds(50)) != std::cv_status::timeout) continue;
    auto between = steady_clock::now();
    bool ready = future.wait_until(system_clock::now() + milliseconds(50)) == std::future_status::ready;
    auto after = steady_clock::now();
    bool early = between - before < milliseconds(40) || after - between < milliseconds(40);
    std::puts(ready || early ? "too early" : "in time");
}

int main(int count, char **arguments) {
    if (count > 1 && std::strcmp(arguments[1], "seed") == 0) return seed(), 0;
    if (count > 1 && std::strcmp(arguments[1], "wait") == 0) return wait(), 0;
    return 97;
}
