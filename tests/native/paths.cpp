// One path by which entropy reaches a C++ program, chosen by the first argument; prints numbers.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <random>
#include <thread>
#include <vector>

static void show(std::random_device &device) {
    for (int i = 0; i < 4; i++) std::printf("%08x\n", device());
}

static void from_stream(std::istream &stream) {
    unsigned char bytes[20000];
    if (!stream.read(reinterpret_cast<char *>(bytes), sizeof(bytes))) std::exit(99);
    for (int i = 0; i < 16; i++) std::printf("%02x", bytes[sizeof(bytes) - 1 - i]);
    std::printf(" %02x\n", stream.get());
}

int main(int count, char **arguments) {
    const char *path = count > 1 ? arguments[1] : "";
    if (std::strcmp(path, "random_device") == 0) {
        std::random_device device;
        show(device);
    } else if (std::strcmp(path, "random_device_token") == 0) {
        std::random_device device("/dev/urandom");
        show(device);
    } else if (std::strcmp(path, "random_device_rdrand") == 0) {
        std::random_device device("rdrand");
        show(device);
    } else if (std::strcmp(path, "random_device_of_another_library") == 0) { // whose objects look otherwise
        alignas(std::random_device) unsigned char object[sizeof(std::random_device)];
        std::memset(object, 0x55, sizeof(object));
        show(*reinterpret_cast<std::random_device *>(object));
    } else if (std::strcmp(path, "random_device_threads") == 0) {
        std::vector<unsigned> values(8);
        std::vector<std::thread> threads;
        for (unsigned &value : values) threads.emplace_back([&value] { value = std::random_device("/dev/urandom")(); });
        for (std::thread &thread : threads) thread.join();
        for (unsigned value : values) std::printf("%08x\n", value);
    } else if (std::strcmp(path, "async") == 0) {
        std::vector<std::future<unsigned>> values;
        for (int i = 0; i < 8; i++)
            values.push_back(std::async(std::launch::async, [] { return std::random_device("getentropy")(); }));
        for (auto &value : values) std::printf("%08x\n", value.get());
    } else if (std::strcmp(path, "ifstream") == 0) {
        std::ifstream stream("/dev/urandom", std::ios::binary);
        from_stream(stream);
    } else if (std::strcmp(path, "ifstream_unbuffered") == 0) {
        std::ifstream stream;
        stream.rdbuf()->pubsetbuf(nullptr, 0);
        stream.open("/dev/urandom", std::ios::binary);
        from_stream(stream);
    } else {
        return 97;
    }
    return 0;
}
