// A library that gives ids as TensorFlow's does: by a function of this name, which each thread seeds for itself.
#include <cstdint>
#include <random>

namespace tsl {
namespace random {
std::uint64_t ThreadLocalNew64() {
    static thread_local std::mt19937_64 generator(std::random_device("/dev/urandom")());
    return generator();
}
} // namespace random
} // namespace tsl

extern "C" std::uint64_t next_id() { return tsl::random::ThreadLocalNew64(); }
